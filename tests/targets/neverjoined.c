/* Starts threads that end, and joins none of them: asked "start N", N more. */
#include <semaphore.h>

#include "command.h"

static sem_t ended;

static void *end(void *unused)
{
	sem_post(&ended);
	return unused;
}

int main(void)
{
	char line[32];
	int count;

	sem_init(&ended, 0, 0);
	say("ready\n");
	while (fgets(line, sizeof(line), stdin) && sscanf(line, "start %d", &count) == 1) {
		for (int n = 0; n < count; n++) {
			begin_thread(end, NULL);
			sem_wait(&ended);
		}
		say("done\n");
	}
	return 0;
}
