/* A process whose resident memory lies in known parts. Asked "free", it frees most of its blocks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>

#include "command.h"

enum { MIB = 1 << 20, BLOCKS = 20000, BLOCK = 1000, THREADS = 4, PINS = 32 };

static char variables[3 * MIB] = { 1 };
static char zeros[5 * MIB];
static char *blocks[BLOCKS];
static pthread_barrier_t there;

static void *wait_on_a_stack(void *unused)
{
	char frame[MIB];

	memset(frame, 1, sizeof(frame));
	__asm__ volatile("" : : "r"(frame) : "memory");
	pthread_barrier_wait(&there);
	pause();
	return unused;
}

int main(int count, char **arguments)
{
	char line[16];
	int shared = memfd_create("parts", 0), file = open(arguments[count - 1], O_RDWR);

	if (ftruncate(shared, 2 * MIB))
		return 1;
	memset(variables, 2, sizeof(variables));
	memset(zeros, 2, sizeof(zeros));
	memset(map_memory(NULL, 2 * MIB, PROT_READ | PROT_WRITE, 0, shared), 3, 2 * MIB);
	memset(map_memory(NULL, 6 * MIB, PROT_READ | PROT_WRITE, 0, file), 4, 6 * MIB);
	memset(outside_the_heap(7 * MIB), 5, 7 * MIB);
	for (int n = 0; n < BLOCKS; n++)
		memset(blocks[n] = malloc(BLOCK), 6, BLOCK);
	pthread_barrier_init(&there, NULL, THREADS + 1);
	for (int n = 0; n < THREADS; n++)
		begin_thread(wait_on_a_stack, NULL);
	pthread_barrier_wait(&there);
	say("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (line[0] == 'f') {
			for (int n = 0; n < BLOCKS; n++)
				if (n % PINS)
					free(blocks[n]);
		} else if (line[0] == 't') {
			malloc_trim(0);
		}
		say("done\n");
	}
}
