/* A job's worst children, for the tests of proof and reaper. Each way of life ends by itself after LIFE_S.

   hostile [--detach] [--bare] WAY [FILE]
     --detach  double fork and setsid first, so that init (or a subreaper) is the parent
     --bare    with an empty environment, as after env -i
     FILE      is held open
   ways: stay     ignores every signal that can be ignored
         chain    forks and ends, forks and ends, each time in a session of its own
         respawn  two that watch each other: whoever outlives the other forks a new one
         breed    forks two more at each TERM, which do the same
         leader   its leading thread ends, another one lives on
         wipe     overwrites its environment, as setproctitle does */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LIFE_S 60
extern char **environ;
static time_t end_at;

static time_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_BOOTTIME, &at);
    return at.tv_sec;
}

static void linger(void) {
    while (now() < end_at) usleep(50000);
    _exit(0);
}

static void chain(void) {
    while (now() < end_at) {
        if (fork() > 0) _exit(0);
        setsid();
    }
}

static void respawn(void) {
    while (now() < end_at) {
        int mine[2], theirs[2];
        char byte;
        if (pipe(mine) || pipe(theirs)) return;
        if (fork() == 0) {
            setsid();
            close(mine[1]), close(theirs[0]);
            if (read(mine[0], &byte, 1) < 0) return; /* until the other is gone */
        } else {
            close(mine[0]), close(theirs[1]);
            if (read(theirs[0], &byte, 1) < 0) return;
        }
        for (int fd = 4; fd < 64; fd++) close(fd);
    }
}

static void breed(int number) {
    (void)number;
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            setsid();
            return;
        }
}

static void *live_on(void *unused) {
    linger();
    return unused;
}

static void live(const char *way) {
    char name[16];
    pthread_t thread;
    if (!strcmp(way, "stay"))
        for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
    if (!strcmp(way, "breed")) signal(SIGTERM, breed);
    snprintf(name, sizeof name, "h-%s", way);
    prctl(PR_SET_NAME, name); /* says that it is ready */
    end_at = now() + LIFE_S;
    if (!strcmp(way, "chain")) chain();
    if (!strcmp(way, "respawn")) respawn();
    if (!strcmp(way, "wipe"))
        for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
    if (!strcmp(way, "leader")) {
        pthread_create(&thread, NULL, live_on, NULL);
        pthread_exit(NULL);
    }
    linger();
}

int main(int argc, char **argv) {
    int at = 1;
    while (at < argc && !strncmp(argv[at], "--", 2)) {
        if (!strcmp(argv[at], "--detach")) {
            if (fork()) _exit(0);
            setsid();
            if (fork()) _exit(0);
        } else {
            char *none[] = {NULL};
            argv[at] = argv[0];
            execve(argv[0], argv + at, none);
        }
        at++;
    }
    if (at + 1 < argc && dup2(open(argv[at + 1], O_RDONLY), 3) < 0) return 2;
    live(at < argc ? argv[at] : "stay");
    return 0;
}
