// Allocates with mimalloc, in several threads that free each other's blocks as well. Asked "info", it
// says how many blocks of how many bytes mimalloc itself finds in use.
#define _GNU_SOURCE
#include <dlfcn.h>

#include "command.h"

enum { THREADS = 4, BLOCKS = 6000 };

typedef int visit_block(const void *heap, const void *area, void *block, size_t size, void *sums);
typedef int visit_blocks(const void *heap, int all, visit_block *visit, void *sums);

static visit_blocks *visit;
static void (*collect)(int force);
static void *(*own_heap)(void), *(*all_heap)(void), *blocks[THREADS][BLOCKS];
static size_t sums[THREADS + 1][2];
static int turn;

static int add(const void *heap, const void *area, void *block, size_t size, void *total)
{
	size_t *to = total;

	(void)heap, (void)area;
	to[0] += block != NULL;
	to[1] += block ? size : 0;
	return 1;
}

// Version 3 has one heap for all threads. Version 2 leaves what other threads have freed to the owner.
static void count(size_t *to)
{
	collect(0);
	if (own_heap || to == sums[THREADS])
		visit(own_heap ? own_heap() : all_heap(), 1, add, to);
}

static size_t random_size(unsigned *seed)
{
	unsigned kind = rand_r(seed) % 1000, number = rand_r(seed);

	return 1 + number % (kind == 0 ? 64 << 20 : kind < 10 ? 1 << 20 : kind < 200 ? 20000 : 600);
}

static void fill(long me)
{
	unsigned seed = (unsigned)me + 1;

	for (int n = 0; n < BLOCKS; n++) {
		blocks[me][n] = malloc(random_size(&seed));
		if (n > 100 && rand_r(&seed) % 3) {
			int gone = rand_r(&seed) % n;

			free(blocks[me][gone]);
			blocks[me][gone] = NULL;
		}
	}
}

static void run(long me)
{
	if (turn == 0)
		fill(me);
	else if (turn > 1)
		count(sums[me]);
	else
		for (int n = 0; n < BLOCKS; n += 3)
			free(blocks[(me + 1) % THREADS][n]);
}

int main(void)
{
	char line[64];

	collect = dlsym(RTLD_DEFAULT, "mi_collect");
	visit = dlsym(RTLD_DEFAULT, "mi_heap_visit_blocks");
	own_heap = dlsym(RTLD_DEFAULT, "mi_heap_get_default");
	all_heap = dlsym(RTLD_DEFAULT, "mi_heap_main");
	if (!collect || !visit || !(own_heap || all_heap))
		return 1;
	begin_gang(THREADS, run);
	for (; turn < 2; turn++)
		take_turn();
	say("ready\n");
	for (;;) {
		size_t total[2] = { 0, 0 };

		hear(line, sizeof(line));
		pthread_barrier_wait(&gang.begin);
		count(sums[THREADS]);
		pthread_barrier_wait(&gang.end);
		for (int n = 0; n <= THREADS; n++)
			for (int at = 0; at < 2; at++) {
				total[at] += sums[n][at];
				sums[n][at] = 0;
			}
		tell("[%zu, %zu]\n", total[0], total[1]);
	}
}
