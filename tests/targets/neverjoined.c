/* Starts threads that end, and joins none of them: asked "start N", N more. */
#include <pthread.h>
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
			pthread_t thread;

			if (pthread_create(&thread, NULL, end, NULL))
				return 1;
			sem_wait(&ended);
		}
		say("done\n");
	}
	return 0;
}
