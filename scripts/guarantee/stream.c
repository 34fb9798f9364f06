/* mpi-stream BEGIN SECONDS: the first rank sends to the last one as fast as it can, from the start until SECONDS after the Unix time
 * BEGIN. The last rank prints the bytes per second that arrived in those SECONDS, and by how much the slowest second fell behind. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

/* Enough on its way that a lane never runs empty. */
enum { BYTES = 8192, WINDOW = 32, SECONDS_MAX = 3600 };

static double now(void)
{
    struct timeval time;

    gettimeofday(&time, NULL);
    return time.tv_sec + time.tv_usec / 1e6;
}

static void receive(MPI_Request *requests, char (*buffers)[BYTES], double begin, int seconds)
{
    static long by_second[SECONDS_MAX];
    long total = 0;
    int ended = 0;

    for (int slot = 0; slot < WINDOW; slot++)
        MPI_Irecv(buffers[slot], BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[slot]);
    for (int slot = 0; !ended; slot = (slot + 1) % WINDOW) {
        MPI_Status status;
        int bytes;

        MPI_Wait(&requests[slot], &status);
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        const double at = now() - begin;
        if (at >= 0 && at < seconds) {
            by_second[(int)at] += bytes;
            total += bytes;
        }
        /* A short message is the last one. */
        ended = bytes < BYTES;
        MPI_Irecv(buffers[slot], BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[slot]);
    }
    for (int slot = 0; slot < WINDOW; slot++) {
        MPI_Cancel(&requests[slot]);
        MPI_Request_free(&requests[slot]);
    }
    long least = by_second[0];
    for (int second = 1; second < seconds; second++)
        least = by_second[second] < least ? by_second[second] : least;
    printf("stream: %.0f bytes/s, least in a second %ld\n", (double)total / seconds, least);
}

static void send(MPI_Request *requests, char (*buffers)[BYTES], int last, double end)
{
    int slot = 0;

    for (int used = 0; now() < end; used++) {
        if (used >= WINDOW)
            MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        MPI_Isend(buffers[slot], BYTES, MPI_BYTE, last, 0, MPI_COMM_WORLD, &requests[slot]);
        slot = (slot + 1) % WINDOW;
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    MPI_Send(buffers[0], 1, MPI_BYTE, last, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    static char buffers[WINDOW][BYTES];
    MPI_Request requests[WINDOW];
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const double begin = argc > 2 ? atof(argv[1]) : 0;
    const int seconds = argc > 2 ? atoi(argv[2]) : 0;
    if (ranks < 2 || seconds < 1 || seconds > SECONDS_MAX) {
        fprintf(stderr, "usage: mpirun -np 2 mpi-stream BEGIN SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int slot = 0; slot < WINDOW; slot++)
        requests[slot] = MPI_REQUEST_NULL;
    if (rank == 0)
        send(requests, buffers, ranks - 1, begin + seconds);
    else if (rank == ranks - 1)
        receive(requests, buffers, begin, seconds);
    MPI_Finalize();
    return 0;
}
