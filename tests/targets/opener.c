// Opens the library that it is told of, to bind to what it needs before all else, and says so.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;

    puts(library ? "opened" : dlerror());
    return !library;
}
