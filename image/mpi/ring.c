/* mpi-ring [ROUNDS]: passes a number around all ranks, each of which adds its own to it, and checks the sum.
 *
 * Every rank has to receive from one neighbour and send to the other, so that it ends well only if all of them can. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks, length;
    char host[MPI_MAX_PROCESSOR_NAME];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_processor_name(host, &length);

    const int rounds = argc > 1 ? atoi(argv[1]) : 10;
    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    long long sum = 0;

    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        if (rank == 0) {
            MPI_Sendrecv_replace(&sum, 1, MPI_LONG_LONG, next, 0, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            continue;
        }
        MPI_Recv(&sum, 1, MPI_LONG_LONG, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        sum += rank;
        MPI_Send(&sum, 1, MPI_LONG_LONG, next, 0, MPI_COMM_WORLD);
    }
    const double seconds = MPI_Wtime() - start;

    printf("rank %d of %d on %s\n", rank, ranks, host);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);

    int wrong = 0;
    if (rank == 0) {
        const long long expected = (long long)rounds * ranks * (ranks - 1) / 2;
        wrong = sum != expected;
        printf("ring: %d ranks, %d rounds, sum %lld, expected %lld: %s (%.3f ms a round)\n", ranks, rounds, sum, expected,
               wrong ? "WRONG" : "ok", rounds > 0 ? seconds / rounds * 1e3 : 0.0);
    }
    MPI_Finalize();
    return wrong;
}
