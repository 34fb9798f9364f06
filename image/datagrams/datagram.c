/* ud-send and ud-count: send InfiniBand datagrams (UD) to any LID, queue pair and Q_Key, and count received ones.
 *
 *   ud-send --lid LID --qpn NUMBER [--count N] [--gid GID] [--mark TEXT]
 *   ud-count [--seconds S] [--mark TEXT]
 *
 * One program under two names, on the first InfiniBand device, with P_Key index 0. ud-count prints where it listens: "listening lid 3
 * qpn 524291 gid fe80::...". At the end it prints "datagrams N marked M": N of all, M with the mark at their beginning. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    QKEY = 0x0b1b2b3b,
    SLOTS = 64,
    GRH_BYTES = 40,
    DATA_BYTES = 256,
    SLOT_BYTES = GRH_BYTES + DATA_BYTES,
    PORT = 1,
};

struct options {
    unsigned lid, qpn;
    long count;
    double seconds;
    const char *mark, *gid;
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
    struct options options = {.count = 1, .seconds = 5, .mark = "datagram"};
    for (int index = 1; index < argc; index += 2) {
        const char *name = argv[index], *value = argv[index + 1];
        if (index + 1 == argc)
            fail("%s needs a value", name);
        if (!strcmp(name, "--lid"))
            options.lid = parse_number(value, 1, 0xbfff);
        else if (!strcmp(name, "--qpn"))
            options.qpn = parse_number(value, 0, 0xffffff);
        else if (!strcmp(name, "--count"))
            options.count = parse_number(value, 1, 1e9);
        else if (!strcmp(name, "--seconds"))
            options.seconds = parse_number(value, 0, 1e6);
        else if (!strcmp(name, "--mark") && strlen(value) < DATA_BYTES)
            options.mark = value;
        else if (!strcmp(name, "--gid"))
            options.gid = value;
        else
            fail("unknown option or value: %s %s", name, value);
    }
    return options;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A queue pair that sends and receives, and its memory. */
struct end {
    struct ibv_context *device;
    struct ibv_pd *domain;
    struct ibv_cq *queue;
    struct ibv_qp *pair;
    struct ibv_mr *region;
    unsigned char memory[SLOTS * SLOT_BYTES];
};

static void receive_into(struct end *end, unsigned slot)
{
    struct ibv_sge place = {(uintptr_t)end->memory + slot * SLOT_BYTES, SLOT_BYTES, end->region->lkey};
    struct ibv_recv_wr request = {.wr_id = slot, .sg_list = &place, .num_sge = 1}, *bad;
    if (ibv_post_recv(end->pair, &request, &bad))
        fail("cannot post a receive");
}

static void open_end(struct end *end)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (!devices || !devices[0])
        fail("there is no InfiniBand device");
    end->device = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    if (!end->device || !(end->domain = ibv_alloc_pd(end->device)))
        fail("cannot open the InfiniBand device");
    end->queue = ibv_create_cq(end->device, 2 * SLOTS, NULL, NULL, 0);
    end->region = ibv_reg_mr(end->domain, end->memory, sizeof(end->memory), IBV_ACCESS_LOCAL_WRITE);
    if (!end->queue || !end->region)
        fail("cannot create a completion queue, or register memory");
    struct ibv_qp_init_attr wanted = {
        .send_cq = end->queue,
        .recv_cq = end->queue,
        .cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD,
    };
    end->pair = ibv_create_qp(end->domain, &wanted);
    if (!end->pair)
        fail("cannot create a queue pair");
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = PORT, .qkey = QKEY};
    if (ibv_modify_qp(end->pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
        fail("cannot initialize the queue pair");
    attributes.qp_state = IBV_QPS_RTR;
    if (ibv_modify_qp(end->pair, &attributes, IBV_QP_STATE))
        fail("the queue pair cannot receive");
    attributes.qp_state = IBV_QPS_RTS;
    if (ibv_modify_qp(end->pair, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN))
        fail("the queue pair cannot send");
}

static void send_all(struct end *end, const struct options *options)
{
    struct ibv_ah_attr to = {.dlid = options->lid, .port_num = PORT};
    if (options->gid) {
        to.is_global = 1;
        to.grh.hop_limit = 64;
        if (inet_pton(AF_INET6, options->gid, &to.grh.dgid) != 1)
            fail("a GID must have the form of an IPv6 address, got '%s'", options->gid);
    }
    struct ibv_ah *address = ibv_create_ah(end->domain, &to);
    if (!address)
        fail("cannot address LID %u", options->lid);
    memset(end->memory, 0, DATA_BYTES);
    strcpy((char *)end->memory, options->mark);
    struct ibv_sge place = {(uintptr_t)end->memory, DATA_BYTES, end->region->lkey};
    struct ibv_send_wr request = {
        .sg_list = &place,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.ud = {.ah = address, .remote_qpn = options->qpn, .remote_qkey = QKEY},
    }, *bad;
    for (long sent = 0; sent < options->count; sent++) {
        struct ibv_wc done;
        int count;
        if (ibv_post_send(end->pair, &request, &bad))
            fail("cannot post a send");
        while (!(count = ibv_poll_cq(end->queue, 1, &done)))
            usleep(1000);
        if (count < 0 || done.status)
            fail("a send failed: %s", count < 0 ? "no completion" : ibv_wc_status_str(done.status));
    }
    printf("sent %ld\n", options->count);
}

static void count_all(struct end *end, const struct options *options)
{
    struct ibv_port_attr port;
    union ibv_gid gid;
    char text[INET6_ADDRSTRLEN];
    for (unsigned slot = 0; slot < SLOTS; slot++)
        receive_into(end, slot);
    if (ibv_query_port(end->device, PORT, &port) || ibv_query_gid(end->device, PORT, 0, &gid))
        fail("cannot query the port");
    printf("listening lid %u qpn %u gid %s\n", port.lid, end->pair->qp_num, inet_ntop(AF_INET6, &gid, text, sizeof(text)));
    fflush(stdout);
    const double until = now() + options->seconds;
    long all = 0, marked = 0;
    unsigned slid = 0;
    while (now() < until) {
        struct ibv_wc done;
        if (ibv_poll_cq(end->queue, 1, &done) <= 0) {
            usleep(2000);
            continue;
        }
        const char *data = (char *)end->memory + done.wr_id * SLOT_BYTES + GRH_BYTES;
        all++;
        if (!strncmp(data, options->mark, DATA_BYTES)) {
            marked++;
            slid = done.slid;
        }
        receive_into(end, done.wr_id);
    }
    printf("datagrams %ld marked %ld slid %u\n", all, marked, slid);
}

int main(int argc, char **argv)
{
    static struct end end;
    const struct options options = parse(argc, argv);
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    const int is_sender = !strcmp(name, "ud-send");
    if (is_sender && !options.lid)
        fail("usage: ud-send --lid LID --qpn NUMBER [--count N] [--gid GID] [--mark TEXT]");
    open_end(&end);
    if (is_sender)
        send_all(&end, &options);
    else
        count_all(&end, &options);
    return 0;
}
