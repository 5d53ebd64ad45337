/* Allocates 10,000 blocks of the size that it is given. */
#include "command.h"

static void *blocks[10000];

int main(int count, char **arguments)
{
	size_t size = count > 1 ? strtoul(arguments[1], NULL, 10) : 1;

	for (int n = 0; n < 10000; n++)
		blocks[n] = malloc(size);
	say("ready\n");
	pause();
	return blocks[0] == NULL;
}
