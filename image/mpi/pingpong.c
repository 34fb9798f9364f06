/* mpi-pingpong [LARGEST]: sends messages of growing size from the first rank to the last and back, and prints half the
 * time of a round trip and the bandwidth of each size. Checks what comes back. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, SMALL_ROUNDS = 50, LARGE_ROUNDS = 5, LARGE_BYTES = 65536 };

int main(int argc, char **argv)
{
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) {
        fprintf(stderr, "mpi-pingpong needs two ranks or more: mpirun -np 2 mpi-pingpong\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    const int last = ranks - 1;
    const long largest = argc > 1 ? atol(argv[1]) : 1 << 20;
    char *sent = malloc(largest > 0 ? largest : 1), *received = malloc(largest > 0 ? largest : 1);
    if (sent == NULL || received == NULL) {
        fprintf(stderr, "mpi-pingpong: no memory for two messages of %ld bytes\n", largest);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (long at = 0; at < largest; at++)
        sent[at] = (char)(at * 31 + 7);
    if (rank == 0)
        printf("%10s %8s %14s %12s\n", "bytes", "rounds", "half trip us", "MB/s");

    int wrong = 0;
    for (long bytes = 1; bytes <= largest; bytes *= 4) {
        const int rounds = bytes < LARGE_BYTES ? SMALL_ROUNDS : LARGE_ROUNDS;
        double start = 0;
        for (int round = -WARM_UP; round < rounds; round++) {
            if (round == 0)
                start = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(sent, (int)bytes, MPI_BYTE, last, 0, MPI_COMM_WORLD);
                MPI_Recv(received, (int)bytes, MPI_BYTE, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (rank == last) {
                MPI_Recv(received, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(received, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
            }
        }
        if (rank == 0) {
            const double half = (MPI_Wtime() - start) / rounds / 2;
            wrong |= memcmp(sent, received, bytes) != 0;
            printf("%10ld %8d %14.1f %12.2f\n", bytes, rounds, half * 1e6, bytes / half / 1e6);
        }
    }
    if (rank == 0)
        printf("pingpong: %s\n", wrong ? "WRONG" : "ok");
    MPI_Finalize();
    return wrong;
}
