// A map into which sessions are inserted all the time: its nodes point to their parents, too.
#include <cstdio>
#include <map>
#include <unistd.h>

struct Session {
	char data[160];
};

static std::map<int, Session *> sessions;

int main()
{
	for (int n = 0;; n++) {
		sessions[n] = new Session();
		if (n == 50000) {
			std::puts("ready");
			std::fflush(stdout);
		}
		// The heap grows by 132 KiB several times while it is searched.
		if (n > 50000 && n % 8 == 0)
			usleep(500);
	}
}
