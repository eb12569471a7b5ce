/* bench_peak FILE COMMAND ...: runs the command (its stdout dropped) and writes the peak resident
 * memory that the kernel counted for it, in MiB, to FILE. Exits with the command's code. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int state;
    struct rusage usage;
    if (argc < 3)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0)
            dup2(null, STDOUT_FILENO);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    if (child < 0 || wait4(child, &state, 0, &usage) != child)
        return 1;
    FILE *f = fopen(argv[1], "w");
    if (!f || fprintf(f, "%.1f\n", (double)usage.ru_maxrss / 1024) < 0 || fclose(f) != 0)
        return 1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 1;
}
