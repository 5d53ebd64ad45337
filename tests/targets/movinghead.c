/* A list that grows at its head all the time, which is in a variable, or where an argument says. */
#include "command.h"

struct node {
	struct node *next;
	char data[56];
};

static struct node *volatile head;
static __thread struct node *volatile own_head;
static struct node *volatile *volatile owner;

static void *volatile *volatile stale;

/* A variable points to freed memory, in which is the only pointer to a block. */
static NOINLINE void lose(void)
{
	stale = malloc(500);
	stale[3] = calloc(1, 333);
	free((void *)stale);
}

int main(int argc, char **argv)
{
	const char *where = argc > 1 ? argv[1] : "";
	struct node *volatile *at = strcmp(where, "thread") ? &head : &own_head;

	if (!strcmp(where, "block"))
		at = owner = calloc(1, 900);
	lose();
	scrub();
	for (int n = 0;; n++) {
		struct node *one = calloc(1, sizeof(*one));

		one->next = *at;
		*at = one;
		if (n == 20000) {
			say("ready\n");
		}
		if (n > 20000)
			usleep(500);
	}
}
