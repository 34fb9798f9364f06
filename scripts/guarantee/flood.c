/* udp-flood HOST BEGIN SECONDS: sends datagrams to a host as fast as it can, from now until SECONDS after the Unix time BEGIN.
 * udp-flood - BEGIN SECONDS: receives them, and prints the bytes per second that arrived in those SECONDS. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { PORT = 5555, BYTES = 1900 };

static double now(void)
{
    struct timeval time;

    gettimeofday(&time, NULL);
    return time.tv_sec + time.tv_usec / 1e6;
}

int main(int argc, char **argv)
{
    static char datagram[BYTES];
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

    if (argc < 4 || fd < 0) {
        fprintf(stderr, "usage: udp-flood HOST|- BEGIN SECONDS\n");
        return 2;
    }
    const double begin = atof(argv[2]), end = begin + atof(argv[3]);
    long count = 0;
    if (strcmp(argv[1], "-") == 0) {
        const struct timeval wait = { .tv_sec = 1 };

        address.sin_addr.s_addr = htonl(INADDR_ANY);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
            perror("bind");
            return 1;
        }
        while (now() < end) {
            const ssize_t bytes = recv(fd, datagram, sizeof(datagram), 0);

            if (bytes > 0 && now() >= begin)
                count += bytes;
        }
        printf("flood: %.0f bytes/s\n", count / (end - begin));
        return 0;
    }
    const struct hostent *host = gethostbyname(argv[1]);
    if (host == NULL || host->h_addrtype != AF_INET) {
        fprintf(stderr, "udp-flood: unknown host %s\n", argv[1]);
        return 1;
    }
    memcpy(&address.sin_addr, host->h_addr_list[0], sizeof(address.sin_addr));
    while (now() < end)
        count += sendto(fd, datagram, sizeof(datagram), 0, (struct sockaddr *)&address, sizeof(address)) > 0;
    printf("flood: %ld datagrams sent\n", count);
    return 0;
}
