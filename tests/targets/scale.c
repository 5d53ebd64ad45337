// Keeps so many blocks of 100 to 299 bytes, says "ready", and then leaks 64 bytes every 2 ms.
#include "command.h"

static void *volatile last;
static void **kept;

NOINLINE static void *make(size_t size) {
  void *block = malloc(size);
  memset(block, 1, 8);
  return block;
}

int main(int argc, char **argv) {
  long count = argc > 1 ? atol(argv[1]) : 1000;
  kept = malloc((size_t)count * sizeof *kept);
  for (long n = 0; n < count; n++)
    kept[n] = make(100 + (size_t)(n % 200));
  say("ready\n");
  for (;;) {
    last = make(64);
    last = NULL;
    usleep(2000);
  }
}
