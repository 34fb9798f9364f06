/* frame-send and frame-count: send arbitrary Ethernet frames from a virtual machine, and count received ones.
 *
 *   frame-send --dst MAC [--src MAC] [--type NUMBER] [--count N] [--bytes N] [--mark TEXT] [--interface NAME]
 *   frame-count --mark TEXT [--seconds S] [--interface NAME]
 *
 * One program under two names. Frames are sent unchanged, with any source address. Counting uses promiscuous mode; a received
 * frame is marked if it contains the mark anywhere. Frames sent by the machine itself do not count. */
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    /* IEEE 802 local experimental EtherType 1: used by no protocol. */
    TYPE_DEFAULT = 0x88b5,
    HEADER_BYTES = 14,
    SHORTEST_BYTES = 60,
    LONGEST_BYTES = 65535,
};

struct options {
    unsigned char destination[6], source[6];
    int has_destination, has_source;
    unsigned type, bytes;
    long count;
    double seconds;
    const char *mark, *interface;
};

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static void parse_mac(const char *text, unsigned char mac[6])
{
    int end = 0;
    if (sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5],
               &end) != 6 || text[end] != '\0')
        fail("a MAC address must have the form 02:00:00:00:00:01, got '%s'", text);
}

static double parse_number(const char *text, double low, double high)
{
    char *end;
    const double value = *text == '0' ? (double)strtoul(text, &end, 0) : strtod(text, &end);
    if (*text == '\0' || *end != '\0' || value < low || value > high)
        fail("the number must be between %g and %g, got '%s'", low, high, text);
    return value;
}

static struct options parse(int argc, char **argv)
{
    struct options options = {.type = TYPE_DEFAULT, .bytes = SHORTEST_BYTES, .count = 1, .seconds = 5, .interface = "eth0"};
    for (int at = 1; at < argc; at += 2) {
        const char *name = argv[at], *value = argv[at + 1];
        if (value == NULL)
            fail("%s needs a value", name);
        else if (!strcmp(name, "--dst"))
            parse_mac(value, options.destination), options.has_destination = 1;
        else if (!strcmp(name, "--src"))
            parse_mac(value, options.source), options.has_source = 1;
        else if (!strcmp(name, "--type"))
            options.type = parse_number(value, 0, 0xffff);
        else if (!strcmp(name, "--bytes"))
            options.bytes = parse_number(value, SHORTEST_BYTES, LONGEST_BYTES);
        else if (!strcmp(name, "--count"))
            options.count = parse_number(value, 1, 1e9);
        else if (!strcmp(name, "--seconds"))
            options.seconds = parse_number(value, 0, 1e6);
        else if (!strcmp(name, "--mark"))
            options.mark = value;
        else if (!strcmp(name, "--interface"))
            options.interface = value;
        else
            fail("unknown option %s; see the head of image/frames/frame.c", name);
    }
    return options;
}

static int open_device(const struct options *options, struct sockaddr_ll *address)
{
    const int descriptor = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (descriptor < 0)
        fail("cannot open a packet socket: %s", strerror(errno));
    *address = (struct sockaddr_ll){.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address->sll_ifindex = if_nametoindex(options->interface);
    if (address->sll_ifindex == 0)
        fail("no such network device: %s", options->interface);
    if (bind(descriptor, (struct sockaddr *)address, sizeof *address) < 0)
        fail("cannot bind to %s: %s", options->interface, strerror(errno));
    return descriptor;
}

static int send_frames(struct options options)
{
    static unsigned char frame[LONGEST_BYTES];
    struct sockaddr_ll address;
    const int descriptor = open_device(&options, &address);

    if (!options.has_destination)
        fail("frame-send requires --dst MAC");
    if (!options.has_source) {
        socklen_t length = sizeof address;
        if (getsockname(descriptor, (struct sockaddr *)&address, &length) < 0)
            fail("%s has no address: %s", options.interface, strerror(errno));
        memcpy(options.source, address.sll_addr, 6);
    }
    memcpy(frame, options.destination, 6);
    memcpy(frame + 6, options.source, 6);
    frame[12] = options.type >> 8;
    frame[13] = options.type;
    if (options.mark != NULL) {
        if (strlen(options.mark) > options.bytes - HEADER_BYTES)
            fail("a mark of %zu bytes does not fit into a frame of %u bytes", strlen(options.mark), options.bytes);
        memcpy(frame + HEADER_BYTES, options.mark, strlen(options.mark));
    }

    long sent = 0;
    while (sent < options.count) {
        if (send(descriptor, frame, options.bytes, 0) < 0) {
            if (errno != ENOBUFS)
                fail("sent %ld of %ld frames: %s", sent, options.count, strerror(errno));
            usleep(1000);
            continue;
        }
        sent++;
    }
    printf("sent %ld\n", sent);
    return 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int count_frames(struct options options)
{
    static unsigned char frame[LONGEST_BYTES];
    struct sockaddr_ll address;
    const int descriptor = open_device(&options, &address);
    const struct packet_mreq all = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};

    if (options.mark == NULL)
        fail("frame-count requires --mark TEXT");
    if (setsockopt(descriptor, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) < 0)
        fail("cannot enable promiscuous mode: %s", strerror(errno));
    /* Senders wait for this line. */
    printf("listening\n");
    fflush(stdout);

    long frames = 0, marked = 0;
    for (double end = now() + options.seconds, left; (left = end - now()) > 0;) {
        struct pollfd wait = {.fd = descriptor, .events = POLLIN};
        if (poll(&wait, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        struct sockaddr_ll from;
        socklen_t length = sizeof from;
        const ssize_t bytes = recvfrom(descriptor, frame, sizeof frame, 0, (struct sockaddr *)&from, &length);
        if (bytes < 0 || from.sll_pkttype == PACKET_OUTGOING)
            continue;
        frames++;
        marked += memmem(frame, bytes, options.mark, strlen(options.mark)) != NULL;
    }
    printf("frames %ld marked %ld\n", frames, marked);
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    name = name == NULL ? argv[0] : name + 1;
    const struct options options = parse(argc, argv);
    if (!strcmp(name, "frame-send"))
        return send_frames(options);
    if (!strcmp(name, "frame-count"))
        return count_frames(options);
    fail("the program must be called as frame-send or frame-count, got %s", name);
}
