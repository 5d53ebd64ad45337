// Threads that allocate, free all of it, and end: 80 of them, 50 blocks each.
#include <pthread.h>
#include <stdlib.h>

#define BLOCKS 50

static void *work(void *arg)
{
    void *volatile blocks[BLOCKS];

    for (int n = 0; n < BLOCKS; n++)
        blocks[n] = malloc((size_t)n * 20);
    for (int n = 0; n < BLOCKS; n++)
        free(blocks[n]);
    return arg;
}

int main(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[4];

        for (int n = 0; n < 4; n++)
            if (pthread_create(&threads[n], NULL, work, NULL))
                return 3;
        for (int n = 0; n < 4; n++)
            pthread_join(threads[n], NULL);
    }
    return 0;
}
