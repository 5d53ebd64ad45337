// Executes a program in its place.
//
//   executor WAY PROGRAM [ARGUMENT]
//
// By the function that is called WAY; by vfork, in a child first.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int is(const char *way, const char *name)
{
    return !strcmp(way, name);
}

int main(int n, char **words)
{
    const char *way = words[1], *program = words[2], *argument = words[3];
    char **rest = words + 2;

    (void)n;
    if (is(way, "execl"))
        execl(program, program, argument, NULL);
    else if (is(way, "execlp"))
        execlp(program, program, argument, NULL);
    else if (is(way, "execle"))
        execle(program, program, argument, NULL, environ);
    else if (is(way, "execv"))
        execv(program, rest);
    else if (is(way, "execvp"))
        execvp(program, rest);
    else if (is(way, "execvpe"))
        execvpe(program, rest, environ);
    else if (is(way, "fexecve"))
        fexecve(open(program, O_RDONLY | O_CLOEXEC), rest, environ);
    else if (is(way, "syscall"))
        syscall(SYS_execve, program, rest, environ);
    else {
        if (is(way, "vfork") && !vfork()) {
            execve(program, rest, environ);
            _exit(1);
        }
        wait(NULL);
        execve("/nonexistent", rest, environ);
        execve(program, rest, environ);
    }
    return 1;
}
