/* A list that grows at its head all the time: the variable points to the newest node. */
#include "command.h"

struct node {
	struct node *next;
	char data[56];
};

static struct node *volatile head;

int main(void)
{
	for (int n = 0;; n++) {
		struct node *one = calloc(1, sizeof(*one));

		one->next = head;
		head = one;
		if (n == 20000) {
			say("ready\n");
		}
		if (n > 20000)
			usleep(500);
	}
}
