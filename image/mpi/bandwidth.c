/* mpi-bandwidth [LARGEST]: sends messages of growing size from the first rank to the last, a window of them at a time, and prints
 * the bandwidth of each size. The last rank checks the last message of each window and confirms the window. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 16, WINDOWS_SMALL = 10, WINDOWS_LARGE = 2, LARGE_BYTES = 65536, SMALLEST = 1024 };

/* Sends or receives a window of messages, and the confirmation. Returns whether the last message is wrong. */
static int one_window(int rank, int last, char *messages, const char *sent, int bytes)
{
    MPI_Request requests[WINDOW];
    int wrong = 0;
    for (int index = 0; index < WINDOW; index++) {
        if (rank == 0)
            MPI_Isend(sent, bytes, MPI_BYTE, last, 1, MPI_COMM_WORLD, &requests[index]);
        else
            MPI_Irecv(messages + (size_t)index * bytes, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[index]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    if (rank == 0) {
        MPI_Recv(&wrong, 1, MPI_INT, last, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        wrong = memcmp(messages + (size_t)(WINDOW - 1) * bytes, sent, bytes) != 0;
        MPI_Send(&wrong, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, ranks, wrong = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) {
        fprintf(stderr, "mpi-bandwidth needs two ranks or more: mpirun -np 2 mpi-bandwidth\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    const int last = ranks - 1;
    const long largest = argc > 1 ? atol(argv[1]) : 1 << 20;
    if (largest < SMALLEST || largest > 1 << 24) {
        fprintf(stderr, "mpi-bandwidth: the largest size must be between %d and %d bytes\n", SMALLEST, 1 << 24);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *sent = malloc(largest), *messages = malloc((size_t)largest * WINDOW);
    if (sent == NULL || messages == NULL) {
        fprintf(stderr, "mpi-bandwidth: no memory for %d messages of %ld bytes\n", WINDOW, largest);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (long at = 0; at < largest; at++)
        sent[at] = (char)(at * 31 + 7);
    if (rank == 0)
        printf("%10s %8s %12s\n", "bytes", "messages", "MB/s");

    for (long bytes = SMALLEST; bytes <= largest; bytes *= 4) {
        const int windows = bytes < LARGE_BYTES ? WINDOWS_SMALL : WINDOWS_LARGE;
        double start = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int window = -1; window < windows; window++) {
            if (window == 0)
                start = MPI_Wtime();
            if (rank == 0 || rank == last)
                wrong |= one_window(rank, last, messages, sent, (int)bytes);
        }
        if (rank == 0) {
            const double seconds = MPI_Wtime() - start;
            printf("%10ld %8d %12.2f\n", bytes, windows * WINDOW, (double)bytes * windows * WINDOW / seconds / 1e6);
        }
    }
    if (rank == 0)
        printf("bandwidth: %s\n", wrong ? "WRONG" : "ok");
    MPI_Finalize();
    return wrong;
}
