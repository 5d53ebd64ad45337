// A C shared object made of Go: Pump(depth, size) calls itself, then C's malloc.
package main

// #include <stdlib.h>
import "C"
import "unsafe"

var kept []unsafe.Pointer

//export Pump
func Pump(depth C.int, size C.size_t) {
	if depth > 0 {
		Pump(depth-1, size)
		return
	}
	kept = append(kept, C.malloc(size))
}

func main() {}
