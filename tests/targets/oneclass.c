/* Allocates 10,000 blocks of each size that it is given. */
#include "command.h"

static void *blocks[10000];

int main(int count, char **sizes)
{
	while (--count)
		for (int n = 0; n < 10000; n++)
			blocks[n] = malloc(strtoul(sizes[count], NULL, 10));
	say("ready\n");
	pause();
	return blocks[0] == NULL;
}
