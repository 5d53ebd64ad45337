/*
 * Makes stacks of every kind and writes down, for each, what an unwinder is given and
 * what libgcc's own finds: registers, a copy of the stack, the return addresses.
 *
 * frames FILE. FILE begins with the length of the process's maps and the maps, then come
 * records. To be built without frame pointers and with -z lazy.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <ctype.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define REGISTERS 17 /* by DWARF number; the last one is the instruction pointer */
#define MOST_FRAMES 128
#define COPY 24576
#define NEVER_INLINE __attribute__((noinline, noclone))

struct record {
	char name[16];
	uint64_t registers[REGISTERS];
	uint64_t interrupted[REGISTERS]; /* where the signal came, or zeros */
	uint64_t n_frames;
	uint64_t frames[MOST_FRAMES];
	uint64_t stack_address;
	uint64_t stack_bytes;
};

static int out;
static const char *volatile now = "plain";
static uint64_t stack_end; /* of the thread or signal stack in use; 0: the main one's */
static uint64_t main_stack_end;
static sigjmp_buf back;
static volatile int sink;
static volatile int stepping; /* only the steps are written down */

static const int GREGS[REGISTERS] = {
	REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
	REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
};

static void put(const void *data, size_t size)
{
	if (write(out, data, size) != (ssize_t)size)
		_exit(3);
}

static NEVER_INLINE void capture(const ucontext_t *interrupted)
{
	static struct record record;
	static char copy[COPY];
	ucontext_t here;
	void *frames[MOST_FRAMES];
	uint64_t sp, size;

	if (stepping && !interrupted)
		return;
	memset(&record, 0, sizeof record);
	strncpy(record.name, now, sizeof record.name - 1);
	record.n_frames = (uint64_t)backtrace(frames, MOST_FRAMES);
	for (uint64_t n = 0; n < record.n_frames; n++)
		record.frames[n] = (uint64_t)frames[n];
	getcontext(&here);
	for (int n = 0; n < REGISTERS; n++) {
		record.registers[n] = (uint64_t)here.uc_mcontext.gregs[GREGS[n]];
		if (interrupted)
			record.interrupted[n] =
				(uint64_t)interrupted->uc_mcontext.gregs[GREGS[n]];
	}
	sp = record.registers[7];
	size = (stack_end ? stack_end : main_stack_end) - sp;
	record.stack_address = sp;
	record.stack_bytes = size < COPY ? size : COPY;
	memcpy(copy, (void *)sp, record.stack_bytes);
	put(&record, sizeof record);
	put(copy, record.stack_bytes);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)info;
	capture(context);
	if (number == SIGSEGV)
		siglongjmp(back, 1);
	sink++;
}

static NEVER_INLINE int deep(int depth)
{
	volatile char room[48];

	room[depth & 31] = 1;
	if (depth)
		return deep(depth - 1) + room[depth & 31];
	capture(NULL);
	return room[0];
}

static NEVER_INLINE int with_alloca(int size)
{
	char *room = alloca((size_t)size);

	memset(room, size, (size_t)size);
	return deep(3) + room[size / 2];
}

/* Aligned beyond what the ABI gives: the frame is found through rbp. */
static NEVER_INLINE int realigned(int value)
{
	volatile __attribute__((aligned(64))) char room[64] = {0};

	room[value & 63] = 1;
	return deep(2) + room[0];
}

/* The same, and of unknown size: the frame is found through a pointer saved in it. */
static NEVER_INLINE int realigned_twice(int a, int b, int c, int d, int e, int f, int g, int h)
{
	volatile __attribute__((aligned(64))) char room[64] = {0};
	char *more = alloca((size_t)(a + h));

	room[g & 63] = 1;
	memset(more, b + c + d + e + f, (size_t)(a + h));
	return deep(2) + room[0] + more[0] + a + b + c + d + e + f + g + h;
}

static int compare(const void *a, const void *b)
{
	static int calls;

	if (calls++ == 5)
		sink += deep(1);
	return *(const int *)a - *(const int *)b;
}

static NEVER_INLINE void sorted(void)
{
	int numbers[] = {5, 3, 9, 1, 7, 2, 8, 4};

	qsort(numbers, 8, sizeof *numbers, compare);
	sink += numbers[0];
}

static NEVER_INLINE int faulting(volatile int *where)
{
	return *where + 1;
}

static void *thread(void *end)
{
	stack_end = (uint64_t)end;
	sink += with_alloca(100);
	return NULL;
}

static void in_thread(void)
{
	size_t size = 256 * 1024;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attributes;
	pthread_t id;

	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, memory, size);
	if (pthread_create(&id, &attributes, thread, memory + size))
		_exit(4);
	pthread_join(id, NULL);
	stack_end = 0;
}

/*
 * One instruction at a time: through the PLT, the dynamic linker, prologues, epilogues.
 * Not through realigned_twice, about whose prologue gcc's information is wrong for two
 * instructions: libgcc itself can crash there.
 */
static NEVER_INLINE void stepped(void)
{
	stepping = 1;
	__asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq" ::: "memory", "cc");
	sink += toupper(sink);
	sink += toupper(sink);
	sink += realigned(sink) + with_alloca(16);
	__asm__ volatile("pushfq; andl $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}

static void write_maps(void)
{
	static char maps[1 << 16];
	uint64_t size = 0;
	ssize_t n;
	int file = open("/proc/self/maps", O_RDONLY);
	char *line;

	while ((n = read(file, maps + size, sizeof maps - 1 - size)) > 0)
		size += (uint64_t)n;
	close(file);
	put(&size, sizeof size);
	put(maps, size);
	line = strstr(maps, "[stack]");
	while (line[-1] != '\n')
		line--;
	main_stack_end = strtoull(strchr(line, '-') + 1, NULL, 16);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	static void *warm[4];

	out = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
	backtrace(warm, 4); /* loads libgcc, which maps more */
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGTRAP, &action, NULL);
	write_maps();

	sink += deep(20);
	now = "alloca";
	sink += with_alloca(argc * 1000);
	now = "realigned";
	sink += realigned(argc);
	now = "realigned twice";
	sink += realigned_twice(argc, 2, 3, 4, 5, 6, 7, 8);
	now = "qsort";
	sorted();
	now = "raise";
	raise(SIGUSR1);
	now = "fault";
	if (!sigsetjmp(back, 1))
		sink += faulting((int *)16);
	now = "thread";
	in_thread();
	now = "step";
	stepped();
	return 0;
}
