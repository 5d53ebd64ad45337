// Loses blocks to which only dead memory points, or keeps blocks where it might seem dead: the
// argument says where.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ucontext.h>

#include "command.h"

enum { BLOCKS = 100, SIZE = 1000, TABLE = 120000, LARGE = 70000, ROOM = 1 << 17,
       FIRST_IN_TABLE = 200 };

void *kept, *kept_too;
static pthread_barrier_t there;
static ucontext_t outside, inside;

static void fill(char *volatile *blocks)
{
	for (int n = 0; n < BLOCKS; n++)
		blocks[n] = calloc(1, SIZE);
	__asm__ volatile("" : : "r"(blocks));
}

// Points to lost blocks from a table, from some index on, and frees that: it is used again.
NOINLINE static void lose_in_freed_memory(int first)
{
	char *volatile *table = calloc(1, TABLE);

	kept = malloc(64);
	fill(table + first);
	free((void *)table);
}

// Runs a thread until it has ended, with its stack in the program's own memory if there is any.
static void run_thread(void *(*run)(void *), int is_joined, char *stack)
{
	char path[64] = "";
	pthread_attr_t attributes;
	pthread_t thread;
	struct timespec soon = { 0, 1000000 };

	pthread_attr_init(&attributes);
	if (stack)
		pthread_attr_setstack(&attributes, stack, ROOM);
	pthread_create(&thread, &attributes, run, path);
	if (is_joined)
		pthread_join(thread, NULL);
	while (!path[0] || !access(path, F_OK))
		nanosleep(&soon, NULL);
}

static void *end_at_once(void *path)
{
	sprintf(path, "/proc/self/task/%d", gettid());
	return NULL;
}

static void *lose_on_a_stack(void *path)
{
	char *volatile blocks[BLOCKS];

	fill(blocks);
	return end_at_once(path);
}

static void *keep_on_a_stack(void *unused)
{
	char *volatile blocks[BLOCKS];

	fill(blocks);
	pthread_barrier_wait(&there);
	for (;;)
		pause();
	return unused;
}

static void keep_in_a_context(void)
{
	char *volatile blocks[BLOCKS];

	fill(blocks);
	swapcontext(&inside, &outside);
	_exit(blocks[0] == NULL);
}

static char *guarded_memory(void)
{
	char *place = mmap(NULL, 2 * ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(place + ROOM, ROOM, PROT_READ | PROT_WRITE);
	return place + ROOM;
}

static void keep_in_a_stream(void)
{
	int pipes[2];
	FILE *file = pipe(pipes) ? NULL : fdopen(pipes[1], "w");

	for (int n = 0; n < BLOCKS; n++) {
		char *block = calloc(1, SIZE);

		fwrite(&block, sizeof(block), 1, file);
	}
}

static void lose(const char *where)
{
	if (!strcmp(where, "stack")) {
		run_thread(lose_on_a_stack, 1, NULL);
	} else if (!strcmp(where, "unjoined")) {
		run_thread(end_at_once, 1, NULL);
		run_thread(lose_on_a_stack, 0, NULL);
	} else if (!strcmp(where, "pool")) {
		lose_in_freed_memory(4000);
		dlopen("libstdc++.so.6", RTLD_NOW);
	} else if (!strcmp(where, "table")) {
		lose_in_freed_memory(FIRST_IN_TABLE);
		dlopen("libm.so.6", RTLD_NOW);
	} else if (!strcmp(where, "buffer")) {
		lose_in_freed_memory(300);
		fputs("text", fopen("/dev/null", "w"));
	} else if (!strcmp(where, "unwritten")) {
		lose_in_freed_memory(4000);
		kept_too = malloc(LARGE);
	}
}

static void keep(const char *where)
{
	if (!strcmp(where, "live")) {
		pthread_barrier_init(&there, NULL, 2);
		run_thread(end_at_once, 1, NULL);
		begin_thread(keep_on_a_stack, NULL);
		pthread_barrier_wait(&there);
	} else if (!strcmp(where, "own")) {
		char *places[] = { guarded_memory(), guarded_memory() };

		for (int n = 0; n < 2; n++) {
			run_thread(end_at_once, n, places[n]);
			for (int at = 0; at < BLOCKS / 2; at++)
				((char **)places[n])[at] = calloc(1, SIZE);
		}
	} else if (!strcmp(where, "context")) {
		run_thread(end_at_once, 0, NULL);
		getcontext(&inside);
		inside.uc_stack.ss_sp = guarded_memory();
		inside.uc_stack.ss_size = ROOM;
		makecontext(&inside, keep_in_a_context, 0);
		swapcontext(&outside, &inside);
	} else if (!strcmp(where, "stream")) {
		keep_in_a_stream();
	}
}

int main(int count, char **arguments)
{
	lose(arguments[count - 1]);
	keep(arguments[count - 1]);
	scrub();
	say("ready\n");
	for (;;)
		pause();
}
