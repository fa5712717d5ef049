/* What a job's processes do that makes them hard to end. `hostile HOLD DEVICE` starts one of each kind, then stays.
   Each holds DEVICE open and ignores every signal that can be ignored; HOLD is a program that takes GPU memory, which
   the first of them becomes after a double fork, setsid and with an empty environment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

static void stay(void) {
    for (int life = 0; life < 1200; life++) usleep(100000);
    _exit(0);
}

static void detach(void) { /* double fork and setsid; returns in the grandchild only */
    setsid();
    if (fork() > 0) _exit(0);
}

static void wipe(void) { /* the environment's own memory, as setproctitle does */
    for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
    prctl(PR_SET_NAME, "innocent");
}

static void breed(int signal) { /* two more for each signal that it can see */
    (void)signal;
    if (fork() == 0) setsid();
}

static void chain(void) { /* never the same pid twice */
    for (int life = 0; life < 60000; life++) {
        if (fork() > 0) _exit(0);
        setsid();
        usleep(2000);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    if (open(argv[2], O_RDONLY) < 0) return 3;
    char *bare[] = {"LC_ALL=C", NULL};
    char *words[] = {"sh", "-c", argv[1], NULL};
    if (fork() == 0) { detach(); execve("/bin/sh", words, bare); _exit(4); }
    if (fork() == 0) { detach(); wipe(); stay(); }
    if (fork() == 0) { setsid(); signal(SIGTERM, breed); signal(SIGCHLD, SIG_IGN); stay(); }
    if (fork() == 0) { detach(); chain(); }
    if (fork() == 0) stay();
    puts("all there");
    fflush(stdout);
    stay();
}
