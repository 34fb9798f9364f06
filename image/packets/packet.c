/* packet-send and packet-count: send any InfiniBand packet from a virtual machine, and count received ones.
 *
 *   packet-send --dlid LID[-LID] [--qpn N] [--slid LID] [--pkey KEY] [--sqp N] [--qkey KEY] [--sgid GID] [--dgid GID]
 *               [--opcode N] [--bytes N] [--cut N] [--mad KIND] [--m-key KEY] [--count N] [--seconds S] [--mark TEXT]
 *   packet-count --mark TEXT [--seconds S]
 *
 * One program under two names. It bypasses the driver: the packets, LRH to ICRC, are written to the Ethernet device that leads to the
 * fabric, as a modified driver could (guest-module/wire.h describes the frames). Every field may be forged; fields that are
 * not named are those of this machine. --cut sends only the first bytes of the packet. --mad sends a management datagram: node-info and
 * set-port-info to QP0; paths, nodes, pkeys, join and counters to QP1.
 *
 * packet-count prints "listening lid 3 first-qpn 524288 gid fe80::... sm-lid 1 pkey 0x8001"; at the end, for each mark that begins with
 * TEXT, "mark TEXT packets N slids 3,4", and "packets N marked M". It sees every packet that the fabric delivers, whatever its queue
 * pair. packet-send prints "sent N", and with --seconds the answers to its management datagrams, such as "answer lid 1 class 0x03 status
 * 0x0000 records 2". */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    /* The wire: IEEE 802 local experimental EtherType 1, and the kinds of its messages. */
    WIRE_TYPE = 0x88b5,
    WIRE_PACKET = 1,
    WIRE_PORT = 2,
    WIRE_HELLO = 3,
    WIRE_PORT_BYTES = 456,
    WIRE_HELLO_BYTES = 80,
    ETHERNET_BYTES = 14,
    WIRE_BYTES = 4,
    /* Packets. */
    LRH = 8,
    GRH = 40,
    BTH = 12,
    DETH = 8,
    MAD = 256,
    ICRC = 4,
    UD_SEND = 0x64,
    RC_WRITE_ONLY = 0x0a,
    /* Length of the headers between BTH and payload of RC_WRITE_ONLY. */
    RETH = 16,
    FRAME_MAX = 16384,
    LONGEST_PAYLOAD = 8000,
    MARK_MAX = 24,
    /* Where a mark stands in a management datagram: reserved, or beyond the attributes used here. */
    MAD_MARK = 230,
    DEFAULT_QKEY = 0x0b1b2b3b,
    SLIDS_SHOWN = 8,
    MARKS_MAX = 16,
};

/* Limited membership of the default partition, in which subnet administration of the fabric is asked. */
#define DEFAULT_PKEY 0x7fff

struct options {
    unsigned first_dlid, last_dlid, slid, pkey, opcode;
    uint32_t qpn, sqp, qkey;
    uint64_t m_key;
    long bytes, cut, count;
    double seconds;
    const char *mark, *mad, *sgid, *dgid, *interface;
    int has_slid, has_pkey, has_sqp, has_qkey, has_cut, has_qpn;
};

/* What the fabric says of the own port. */
struct port {
    unsigned lid, sm_lid, pkey;
    uint32_t first_qpn;
    unsigned char gid[16];
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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t parse_number(const char *name, const char *text, uint64_t low, uint64_t high)
{
    char *end;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 0);
    if (*text == '\0' || *text == '-' || *end != '\0' || errno || value < low || value > high)
        fail("%s must be between %llu and %llu, got '%s'", name, (unsigned long long)low, (unsigned long long)high, text);
    return value;
}

static void parse_lids(struct options *options, const char *text)
{
    char first[16];
    const char *dash = strchr(text, '-');
    const size_t length = dash ? (size_t)(dash - text) : strlen(text);
    if (length >= sizeof first)
        fail("a LID must be between 1 and 65535, got '%s'", text);
    memcpy(first, text, length);
    first[length] = '\0';
    options->first_dlid = parse_number("a LID", first, 1, 0xffff);
    options->last_dlid = dash ? parse_number("a LID", dash + 1, options->first_dlid, 0xffff) : options->first_dlid;
}

static struct options parse(int argc, char **argv)
{
    struct options it = {.opcode = UD_SEND, .bytes = 64, .count = 1, .mark = "packet"};
    for (int index = 1; index < argc; index += 2) {
        const char *name = argv[index], *value = argv[index + 1];
        if (value == NULL)
            fail("%s needs a value", name);
        else if (!strcmp(name, "--dlid"))
            parse_lids(&it, value);
        else if (!strcmp(name, "--slid"))
            it.slid = parse_number(name, value, 0, 0xffff), it.has_slid = 1;
        else if (!strcmp(name, "--qpn"))
            it.qpn = parse_number(name, value, 0, 0xffffff), it.has_qpn = 1;
        else if (!strcmp(name, "--sqp"))
            it.sqp = parse_number(name, value, 0, 0xffffff), it.has_sqp = 1;
        else if (!strcmp(name, "--pkey"))
            it.pkey = parse_number(name, value, 0, 0xffff), it.has_pkey = 1;
        else if (!strcmp(name, "--qkey"))
            it.qkey = parse_number(name, value, 0, 0xffffffff), it.has_qkey = 1;
        else if (!strcmp(name, "--m-key"))
            it.m_key = parse_number(name, value, 0, UINT64_MAX);
        else if (!strcmp(name, "--opcode"))
            it.opcode = parse_number(name, value, 0, 0xff);
        else if (!strcmp(name, "--bytes"))
            it.bytes = parse_number(name, value, MARK_MAX, LONGEST_PAYLOAD);
        else if (!strcmp(name, "--cut"))
            it.cut = parse_number(name, value, 0, LONGEST_PAYLOAD), it.has_cut = 1;
        else if (!strcmp(name, "--count"))
            it.count = parse_number(name, value, 1, 1000000);
        else if (!strcmp(name, "--seconds"))
            it.seconds = parse_number(name, value, 0, 3600);
        else if (!strcmp(name, "--mark") && strlen(value) < MARK_MAX)
            it.mark = value;
        else if (!strcmp(name, "--mad"))
            it.mad = value;
        else if (!strcmp(name, "--sgid"))
            it.sgid = value;
        else if (!strcmp(name, "--dgid"))
            it.dgid = value;
        else if (!strcmp(name, "--interface"))
            it.interface = value;
        else
            fail("unknown option or value: %s %s; see the head of image/packets/packet.c", name, value);
    }
    if (it.bytes % 4)
        fail("--bytes must be a multiple of 4, got %ld", it.bytes);
    return it;
}

static unsigned get16(const unsigned char *from) { return from[0] << 8 | from[1]; }
static uint32_t get32(const unsigned char *from) { return (uint32_t)get16(from) << 16 | get16(from + 2); }
static void put16(unsigned char *to, unsigned value) { to[0] = value >> 8, to[1] = value; }
static void put32(unsigned char *to, uint32_t value) { put16(to, value >> 16), put16(to + 2, value); }
static void put64(unsigned char *to, uint64_t value) { put32(to, value >> 32), put32(to + 4, value); }

/* ---- the wire */

/* Finds the device by its address, as the driver does. */
static const char *find_wire(void)
{
    static char found[IF_NAMESIZE];
    DIR *directory = opendir("/sys/class/net");
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[300], address[18] = "";
        snprintf(path, sizeof path, "/sys/class/net/%s/address", entry->d_name);
        FILE *file = entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof found ? NULL : fopen(path, "r");
        if (!file)
            continue;
        if (fgets(address, sizeof address, file) && !strncmp(address, "06:68:63", 8))
            strcpy(found, entry->d_name);
        fclose(file);
    }
    if (directory)
        closedir(directory);
    if (!*found)
        fail("this machine has no InfiniBand adapter: no device has an address that begins with 06:68:63");
    return found;
}

static int open_wire(const char *interface)
{
    const int wire = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address.sll_ifindex = if_nametoindex(interface);
    if (wire < 0 || !address.sll_ifindex || bind(wire, (struct sockaddr *)&address, sizeof address) < 0)
        fail("cannot open %s: %s", interface, strerror(errno));
    return wire;
}

static void send_message(int wire, unsigned kind, const unsigned char *body, size_t length)
{
    static unsigned char frame[FRAME_MAX];
    memset(frame, 0xff, 12);
    put16(frame + 12, WIRE_TYPE);
    frame[14] = kind;
    frame[15] = 1;
    put16(frame + 16, length);
    memcpy(frame + ETHERNET_BYTES + WIRE_BYTES, body, length);
    size_t all = ETHERNET_BYTES + WIRE_BYTES + length;
    /* Shorter frames are padded. */
    if (all < 60)
        memset(frame + all, 0, 60 - all), all = 60;
    while (send(wire, frame, all, 0) < 0) {
        if (errno != ENOBUFS)
            fail("cannot send %zu bytes: %s", all, strerror(errno));
        usleep(1000);
    }
}

/* The next message from the fabric of this kind, or NULL if none has arrived by then. */
static const unsigned char *next_message(int wire, unsigned kind, double until, size_t *length)
{
    static unsigned char frame[FRAME_MAX];
    for (double left; (left = until - now()) > 0;) {
        struct pollfd wait = {.fd = wire, .events = POLLIN};
        if (poll(&wait, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        struct sockaddr_ll from;
        socklen_t size = sizeof from;
        const ssize_t bytes = recvfrom(wire, frame, sizeof frame, 0, (struct sockaddr *)&from, &size);
        if (bytes < ETHERNET_BYTES + WIRE_BYTES || from.sll_pkttype == PACKET_OUTGOING)
            continue;
        *length = get16(frame + 16);
        if (get16(frame + 12) == WIRE_TYPE && frame[14] == kind && frame[15] == 1 &&
            *length <= (size_t)bytes - ETHERNET_BYTES - WIRE_BYTES)
            return frame + ETHERNET_BYTES + WIRE_BYTES;
    }
    return NULL;
}

/* Asks the fabric for the own port, as the driver does. */
static struct port ask_port(int wire)
{
    unsigned char hello[WIRE_HELLO_BYTES] = {0};
    const uint32_t sequence = (uint32_t)(now() * 1e6) | 1;
    size_t length;
    put32(hello, sequence);
    send_message(wire, WIRE_HELLO, hello, sizeof hello);
    const double until = now() + 5;
    for (const unsigned char *body; (body = next_message(wire, WIRE_PORT, until, &length));) {
        if (length < WIRE_PORT_BYTES || get32(body + 48) != sequence)
            continue;
        struct port port = {.lid = get16(body + 52), .sm_lid = get16(body + 54), .pkey = get16(body + 200), .first_qpn = get32(body + 40)};
        memcpy(port.gid, body + 24, 8);
        memcpy(port.gid + 8, body + 72, 8);
        return port;
    }
    fail("the fabric does not answer");
    return (struct port){0};
}

/* ---- packets */

static void read_gid(unsigned char gid[16], const char *text)
{
    if (inet_pton(AF_INET6, text, gid) != 1)
        fail("a GID must have the form of an IPv6 address, got '%s'", text);
}

/* Kinds of management datagrams. The modifier of set-port-info is the port; that of counters is 0. */
static const struct kind {
    const char *name;
    unsigned class, version, method, attribute, modifier, qpn;
    uint64_t mask;
} KINDS[] = {
    {"node-info", 0x01, 1, 0x01, 0x0011, 0, 0, 0},
    {"set-port-info", 0x01, 1, 0x02, 0x0015, 1, 0, 0},
    /* PathRecord by source and destination GID; all NodeRecords; all PKeyTableRecords; MCMemberRecord by MGID, port, P_Key, join state. */
    {"paths", 0x03, 2, 0x12, 0x0035, 0, 1, 1 << 2 | 1 << 3 | 1 << 12},
    {"nodes", 0x03, 2, 0x12, 0x0011, 0, 1, 0},
    {"pkeys", 0x03, 2, 0x12, 0x0033, 0, 1, 0},
    {"join", 0x03, 2, 0x02, 0x0038, 0, 1, 1 << 0 | 1 << 1 | 1 << 7 | 1 << 16},
    {"counters", 0x04, 1, 0x01, 0x0012, 0, 1, 0},
};

static const struct kind *find_kind(const char *name)
{
    for (size_t index = 0; index < sizeof KINDS / sizeof *KINDS; index++)
        if (!strcmp(name, KINDS[index].name))
            return &KINDS[index];
    fail("--mad must be node-info, set-port-info, paths, nodes, pkeys, join or counters, got '%s'", name);
    return NULL;
}

static uint64_t transaction;

static void write_mad(unsigned char *mad, const struct kind *kind, const struct options *options, const struct port *port)
{
    memset(mad, 0, MAD);
    mad[0] = 1, mad[1] = kind->class, mad[2] = kind->version, mad[3] = kind->method;
    put64(mad + 8, transaction++);
    put16(mad + 16, kind->attribute);
    put32(mad + 20, kind->modifier);
    if (kind->class == 0x01)
        put64(mad + 24, options->m_key);
    if (kind->class == 0x04)
        mad[64 + 1] = 1;
    if (kind->class == 0x03) {
        unsigned char *data = mad + 56;
        put64(mad + 48, kind->mask);
        if (kind->attribute == 0x35) {
            if (!options->dgid)
                fail("--mad paths needs --dgid");
            read_gid(data + 8, options->dgid);
            memcpy(data + 24, port->gid, 16);
            data[49] = 1;
        } else if (kind->attribute == 0x38) {
            /* The group of IPoIB broadcasts in that partition. */
            const unsigned char broadcast[16] = {0xff, 0x12, 0x40, 0x1b, options->pkey >> 8 | 0x80, options->pkey, [12] = 0xff, 0xff, 0xff, 0xff};
            memcpy(data, broadcast, 16);
            memcpy(data + 16, port->gid, 16);
            put16(data + 40, options->pkey | 0x8000);
            data[48] = 0x21;
        }
    }
    strcpy((char *)mad + MAD_MARK, options->mark);
}

/* Writes a packet to one LID, and returns its length. */
static size_t write_packet(unsigned char *packet, const struct options *options, const struct port *port, unsigned dlid)
{
    const struct kind *kind = options->mad ? find_kind(options->mad) : NULL;
    const int is_sa = kind && kind->class == 0x03;
    /* With an SA request, the GID and the P_Key are what it asks for. */
    const int is_global = !is_sa && (options->sgid || options->dgid);
    const size_t own = options->opcode == RC_WRITE_ONLY ? RETH : options->opcode == UD_SEND || options->opcode == UD_SEND + 1 ? DETH : 0;
    const size_t payload = kind ? MAD : (size_t)options->bytes;
    const size_t transport = BTH + own + payload + ICRC, length = LRH + (is_global ? GRH : 0) + transport;
    unsigned char *at = packet;
    memset(packet, 0, length);
    at[1] = is_global ? 3 : 2;
    put16(at + 2, dlid);
    put16(at + 4, length / 4);
    put16(at + 6, options->has_slid ? options->slid : port->lid);
    at += LRH;
    if (is_global) {
        at[0] = 0x60;
        put16(at + 4, transport);
        at[6] = 0x1b;
        at[7] = 64;
        if (options->sgid)
            read_gid(at + 8, options->sgid);
        else
            memcpy(at + 8, port->gid, 16);
        if (options->dgid)
            read_gid(at + 24, options->dgid);
        at += GRH;
    }
    const uint32_t qpn = options->has_qpn ? options->qpn : kind ? kind->qpn : port->first_qpn + 1;
    const uint32_t sqp = options->has_sqp ? options->sqp : kind ? kind->qpn : port->first_qpn + 1;
    const uint32_t qkey = options->has_qkey ? options->qkey : !kind ? DEFAULT_QKEY : kind->qpn ? 0x80010000 : 0;
    at[0] = options->opcode;
    /* In the cluster's own partition, its network view would answer. */
    put16(at + 2, is_sa ? DEFAULT_PKEY : options->has_pkey ? options->pkey : port->pkey);
    put32(at + 4, qpn);
    at += BTH;
    if (own == DETH)
        put32(at, qkey), put32(at + 4, sqp);
    else if (own == RETH)
        put32(at + 12, payload);
    at += own;
    if (kind)
        write_mad(at, kind, options, port);
    else
        strcpy((char *)at, options->mark);
    return options->has_cut && (size_t)options->cut < length ? (size_t)options->cut : length;
}

/* ---- answers */

/* Finds the management datagram in a packet: a datagram to QP0 or QP1. */
static const unsigned char *mad_of(const unsigned char *packet, size_t length)
{
    const size_t headers = LRH + (length > LRH && (packet[1] & 3) == 3 ? GRH : 0);
    if (length < headers + BTH + DETH + MAD + ICRC || packet[headers] != UD_SEND || get32(packet + headers + 4) > 1)
        return NULL;
    return packet + headers + BTH + DETH;
}

static void print_answer(const unsigned char *packet, const unsigned char *mad)
{
    printf("answer lid %u class 0x%02x status 0x%04x", get16(packet + 6), mad[1], get16(mad + 4));
    /* The first segment states the bytes of all, with 20 of headers for each 200. Offsets between records count words of 8 bytes. */
    if (mad[1] == 0x03 && get16(mad + 4) == 0 && mad[3] == 0x92 && get32(mad + 28) <= 1) {
        const unsigned step = get16(mad + 44) * 8, bytes = get32(mad + 32);
        const unsigned headers = (uint64_t)bytes + 219 > UINT32_MAX ? bytes : (bytes + 219) / 220 * 20;
        printf(" records %u", step && bytes > headers ? (bytes - headers + step - 1) / step : 0);
    }
    if (mad[1] == 0x01 && get16(mad + 16) == 0x0011)
        printf(" guid 0x%08x%08x", get32(mad + 64 + 12), get32(mad + 64 + 16));
    putchar('\n');
}

static void print_answers(int wire, double until, uint64_t first)
{
    size_t length;
    unsigned answers = 0;
    for (const unsigned char *packet; (packet = next_message(wire, WIRE_PACKET, until, &length));) {
        const unsigned char *mad = mad_of(packet, length);
        if (!mad || !(mad[3] & 0x80))
            continue;
        /* Lower half: the fabric may use the upper one. */
        const uint32_t offset = get32(mad + 12) - (uint32_t)first;
        if (offset < (uint32_t)(transaction - first))
            print_answer(packet, mad), answers++;
    }
    printf("answers %u\n", answers);
}

static void send_all(const struct options *options, int wire, const struct port *port)
{
    static unsigned char packet[FRAME_MAX];
    const uint64_t first = transaction;
    long sent = 0;
    for (unsigned dlid = options->first_dlid; dlid <= options->last_dlid; dlid++)
        for (long copy = 0; copy < options->count; copy++, sent++)
            send_message(wire, WIRE_PACKET, packet, write_packet(packet, options, port, dlid));
    printf("sent %ld\n", sent);
    fflush(stdout);
    if (options->seconds > 0)
        print_answers(wire, now() + options->seconds, first);
}

/* ---- counting */

/* Received packets with one mark. */
struct marked {
    char mark[MARK_MAX];
    long packets;
    unsigned slids[SLIDS_SHOWN], different;
};

/* Reads the mark of a packet that begins with `prefix`: up to the first byte that no mark has. */
static int read_mark(char mark[MARK_MAX], const unsigned char *packet, size_t length, const char *prefix)
{
    const unsigned char *found = memmem(packet, length, prefix, strlen(prefix));
    size_t bytes = 0;
    if (!found)
        return 0;
    while (bytes < MARK_MAX - 1 && found + bytes < packet + length && found[bytes] > ' ' && found[bytes] < 0x7f)
        bytes++;
    memcpy(mark, found, bytes);
    mark[bytes] = '\0';
    return 1;
}

static void count_one(struct marked *it, unsigned slid)
{
    unsigned index = 0;
    it->packets++;
    while (index < it->different && it->slids[index] != slid)
        index++;
    if (index == it->different && it->different < SLIDS_SHOWN)
        it->slids[it->different++] = slid;
}

static void count_all(const struct options *options, int wire, const struct port *port)
{
    /* Packets with more marks are counted under the last one. */
    static struct marked marks[MARKS_MAX];
    unsigned count = 0;
    long all = 0, marked = 0;
    char gid[INET6_ADDRSTRLEN], mark[MARK_MAX];
    size_t length;
    /* Senders wait for this line. */
    printf("listening lid %u first-qpn %u gid %s sm-lid %u pkey 0x%04x\n", port->lid, port->first_qpn,
           inet_ntop(AF_INET6, port->gid, gid, sizeof gid), port->sm_lid, port->pkey);
    fflush(stdout);
    const double until = now() + (options->seconds > 0 ? options->seconds : 5);
    for (const unsigned char *packet; (packet = next_message(wire, WIRE_PACKET, until, &length)); all++) {
        if (length < LRH || !read_mark(mark, packet, length, options->mark))
            continue;
        unsigned index = 0;
        while (index < count && strcmp(marks[index].mark, mark))
            index++;
        if (index == count && count < MARKS_MAX)
            strcpy(marks[count++].mark, mark);
        count_one(&marks[index < MARKS_MAX ? index : MARKS_MAX - 1], get16(packet + 6));
        marked++;
    }
    for (unsigned index = 0; index < count; index++) {
        printf("mark %s packets %ld slids ", marks[index].mark, marks[index].packets);
        for (unsigned which = 0; which < marks[index].different; which++)
            printf("%s%u", which ? "," : "", marks[index].slids[which]);
        putchar('\n');
    }
    printf("packets %ld marked %ld\n", all, marked);
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    const struct options options = parse(argc, argv);
    const int is_sender = !strcmp(name, "packet-send");
    if (is_sender && !options.first_dlid)
        fail("packet-send needs --dlid; see the head of image/packets/packet.c");
    transaction = (uint64_t)(now() * 1e6) & 0xffffffff;
    const int wire = open_wire(options.interface ? options.interface : find_wire());
    const struct port port = ask_port(wire);
    if (is_sender)
        send_all(&options, wire, &port);
    else
        count_all(&options, wire, &port);
    return 0;
}
