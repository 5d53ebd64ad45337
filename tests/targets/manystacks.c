// Allocates and frees from ever other call stacks, without end.
#include "command.h"

static unsigned long seed = 1;

static void *left(unsigned long path, int depth);

NOINLINE static void *right(unsigned long path, int depth)
{
	void *block = !depth ? malloc(16) : path & 1 ? left(path >> 1, depth - 1)
						     : right(path >> 1, depth - 1);

	__asm__ volatile("" : : "r"(block) : "memory");
	return block;
}

NOINLINE static void *left(unsigned long path, int depth)
{
	void *block = !depth ? malloc(16) : path & 1 ? left(path >> 1, depth - 1)
						     : right(path >> 1, depth - 1);

	__asm__ volatile("" : : "r"(block) : "memory");
	return block;
}

int main(void)
{
	say("ready\n");
	for (;;) {
		seed = seed * 6364136223846793005UL + 1442695040888963407UL;
		free(left(seed >> 24, 40));
	}
}
