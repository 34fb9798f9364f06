/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The adapter: its objects, and what its files offer each other.
 *
 * Locks. One ordered work queue, the engine, does all work on packets, and
 * all memory access and completions on their behalf. It holds hca_dev.engine,
 * which protects everything in this file that names no other lock. Verbs that
 * may sleep take the mutex, too. Verbs that may not sleep - posting, polling,
 * arming - have spin locks of their queues and wake the engine.
 */
#ifndef HEDDLE_HCA_H
#define HEDDLE_HCA_H

#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/notifier.h>
#include <linux/skbuff.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "packet.h"
#include "wire.h"

#define HCA_PORT		1
#define HCA_SGE_MAX		16
#define HCA_INLINE_MAX		256
#define HCA_WR_MAX		16384
#define HCA_CQE_MAX		65535
#define HCA_MSG_MAX		(1u << 30)
#define HCA_FAST_PAGES_MAX	512
#define HCA_MULTICAST_MAX	4096

/* RDMA reads and atomic operations of a queue pair, in each direction. */
#define HCA_RD_ATOMIC_MAX	16

/*
 * Packets of a queue pair without an acknowledgement, read responses that it
 * awaits included. Bounds what a peer and the host have to hold.
 */
#define HCA_WINDOW		64

/* A READ request asks for so many packets at most, so that others fit in. */
#define HCA_READ_PACKETS	32

/* A request for an acknowledgement within a long message. */
#define HCA_ACK_INTERVAL	16

/* Packets that a queue pair sends before it is the turn of the next. */
#define HCA_BURST		32

/*
 * Frames given to the wire and not yet freed by it. Less than the ring of a
 * virtio-net device has, so that no queueing discipline has to drop any.
 */
#define HCA_TX_MAX		96

/* Frames that wait for the engine. More are dropped. */
#define HCA_RX_MAX		4096

/* The L_Key of all memory, for the kernel alone. No region has index 0. */
#define HCA_DMA_LKEY		1

enum hca_stat {
	HCA_STAT_TX_PACKETS,
	HCA_STAT_RX_PACKETS,
	HCA_STAT_TX_DROPPED,
	HCA_STAT_RX_OVERRUN,
	HCA_STAT_RX_MALFORMED,
	HCA_STAT_RX_NO_QP,
	HCA_STAT_BAD_PKEY,
	HCA_STAT_BAD_QKEY,
	HCA_STAT_BAD_ADDRESS,
	HCA_STAT_UD_NO_BUFFER,
	HCA_STAT_UD_TOO_LONG,
	HCA_STAT_RC_TIMEOUTS,
	HCA_STAT_RC_RESENT,
	HCA_STAT_RNR_NAK_SENT,
	HCA_STAT_RNR_NAK_RECEIVED,
	HCA_STAT_SEQ_NAK_SENT,
	HCA_STAT_SEQ_NAK_RECEIVED,
	HCA_STAT_DUPLICATES,
	HCA_STATS
};

struct hca_dev {
	struct ib_device ib;
	struct mutex engine;
	struct workqueue_struct *wq;
	struct work_struct work;
	atomic64_t stats[HCA_STATS];

	/* The wire. */
	struct net_device *wire;	/* NULL: none; also under RTNL */
	struct packet_type tap;
	struct notifier_block notifier;
	struct sk_buff_head rx;
	atomic_t tx_in_flight;
	wait_queue_head_t tx_idle;

	/* Queue pairs with work for the engine. */
	spinlock_t ready_lock;
	struct list_head ready;

	/* The port. The engine alone writes, under port_lock, too. */
	spinlock_t port_lock;
	struct wire_port port;
	bool wire_up;
	u32 port_changes;

	/* Finding the wire, hello, registration. */
	struct delayed_work setup;
	struct completion set_up;
	u32 hello;			/* sequence number */
	u32 hello_answered;
	bool registered;
	bool closing;
	bool issm;

	struct xarray qps;
	struct xarray mrs;
	u32 next_qpn;
	u32 next_mr;
	struct list_head multicast;
	u32 multicast_count;
};

struct hca_pd {
	struct ib_pd ib;
};

struct hca_ucontext {
	struct ib_ucontext ib;
};

/* Where packets go: an address vector. */
struct hca_av {
	u16 dlid;
	u8 sl;
	u8 path_bits;
	bool global;
	u8 sgid_index;
	u8 hop_limit;
	u8 traffic_class;
	u32 flow_label;
	union ib_gid dgid;
};

struct hca_ah {
	struct ib_ah ib;
	struct hca_av av;
};

struct hca_cq {
	struct ib_cq ib;
	spinlock_t lock;		/* all below */
	struct ib_wc *ring;
	u32 size;			/* a power of 2 */
	u32 head;
	u32 tail;
	enum ib_cq_notify_flags armed;	/* 0: not */
	bool overrun;
};

enum hca_mr_kind {
	HCA_MR_DMA,			/* all memory of the kernel */
	HCA_MR_USER,
	HCA_MR_FAST,
};

struct hca_mr {
	struct ib_mr ib;
	enum hca_mr_kind kind;
	bool valid;
	u32 key;			/* L_Key and R_Key */
	int access;
	u64 iova;
	u64 length;
	u32 offset;			/* of iova in the first page */
	u8 page_shift;
	u32 page_count;
	u32 page_max;
	void **pages;
	struct ib_umem *umem;
};

struct hca_recv {
	u64 wr_id;
	int num_sge;
	struct ib_sge sge[HCA_SGE_MAX];
};

/* A receive queue, of a queue pair or shared. */
struct hca_rq {
	spinlock_t lock;		/* all below */
	void *slots;
	u32 stride;
	u32 size;			/* a power of 2, or 0 */
	u32 max_wr;
	u32 max_sge;
	u32 head;
	u32 tail;
};

struct hca_srq {
	struct ib_srq ib;
	struct hca_rq rq;
	u32 limit;			/* 0: not armed; rq.lock */
};

/* A work request of a send queue. */
struct hca_send {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	int flags;
	u32 length;
	u32 imm;			/* immediate data, or the R_Key to invalidate */
	int num_sge;
	union {
		struct {
			u64 address;
			u32 rkey;
			u64 compare_add;
			u64 swap;
		} remote;
		struct {
			struct hca_av av;
			u32 qpn;
			u32 qkey;
			u16 pkey_index;
		} ud;
		struct {
			struct hca_mr *mr;
			u32 key;
			int access;
		} reg;
	};

	/* State of the requester of a reliable connection. */
	bool started;			/* has sequence numbers */
	u32 first_psn;
	u32 packets;			/* 0: nothing to be sent */
	u32 sent;
	enum ib_wc_status status;	/* failed, to be completed in its turn */

	struct ib_sge sge[];		/* or inline data */
};

/* A send queue. The engine takes what is between tail and head. */
struct hca_sq {
	spinlock_t lock;		/* posting */
	void *slots;
	u32 stride;
	u32 size;			/* a power of 2 */
	u32 head;
	u32 tail;
};

struct hca_requester {
	u32 cur;			/* the send that is to be sent next */
	u32 next_psn;			/* for sends that are not started */
	u32 una;			/* the oldest PSN not acknowledged */
	u32 sent_psn;			/* after the last packet sent */
	u32 max_psn;			/* the largest sent_psn so far */
	/* PSNs after requests of READ and atomics without a response. */
	u32 reads[HCA_RD_ATOMIC_MAX];
	u32 read_head;
	u32 read_count;
	u8 retries_left;
	u8 rnr_retries_left;
	bool gap_seen;			/* a response before una is missing */
	bool rnr_wait;
	bool drain;			/* report when it is drained */
	bool timing;
	unsigned long deadline;		/* in jiffies, if timing */
};

/* A response of RDMA READ or of an atomic operation; kept for duplicates. */
struct hca_answer {
	u8 opcode;			/* of the request */
	u32 psn;
	u32 packets;
	u32 base;			/* of the packet that begins the response */
	u32 next;			/* packet to be sent next */
	bool duplicate;
	u64 address;
	u32 rkey;
	u32 length;
	u64 original;
};

enum hca_message {
	HCA_NO_MESSAGE,
	HCA_IN_SEND,
	HCA_IN_WRITE,
};

struct hca_responder {
	u32 epsn;			/* expected */
	u32 msn;
	enum hca_message message;
	/* The message of a SEND. */
	bool have_recv;
	u32 received;
	struct hca_recv recv;
	/* The message of an RDMA WRITE. */
	u64 write_address;
	u32 write_rkey;
	u32 write_left;
	u32 write_length;
	/* Answers, a ring: the last is at answer_count - 1. */
	struct hca_answer answers[HCA_RD_ATOMIC_MAX];
	u32 answer_count;
	/* The acknowledgement that is due after the answers. */
	bool ack_due;
	u8 syndrome;
	bool nak_sent;
	bool refused;			/* the NAK is the last packet */
	bool last_wqe_told;
	bool established;		/* a packet has arrived */
};

struct hca_qp {
	struct ib_qp ib;
	struct list_head ready;		/* hca_dev.ready_lock */
	bool queued;			/* hca_dev.ready_lock */
	struct delayed_work timer;
	unsigned long timer_at;		/* when it expires, if it is pending */
	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_cap cap;
	bool user;
	bool signal_all;
	bool no_loopback;
	struct hca_av av;
	struct hca_sq sq;
	struct hca_rq rq;
	struct hca_srq *srq;
	struct hca_requester req;
	struct hca_responder resp;
};

struct hca_multicast {
	struct list_head list;
	union ib_gid gid;
	struct hca_qp *qp;
};

static inline struct hca_dev *to_dev(struct ib_device *ib)
{
	return container_of(ib, struct hca_dev, ib);
}

static inline struct hca_ah *to_ah(struct ib_ah *ib)
{
	return container_of(ib, struct hca_ah, ib);
}

static inline struct hca_cq *to_cq(struct ib_cq *ib)
{
	return container_of(ib, struct hca_cq, ib);
}

static inline struct hca_mr *to_mr(struct ib_mr *ib)
{
	return container_of(ib, struct hca_mr, ib);
}

static inline struct hca_srq *to_srq(struct ib_srq *ib)
{
	return container_of(ib, struct hca_srq, ib);
}

static inline struct hca_qp *to_qp(struct ib_qp *ib)
{
	return container_of(ib, struct hca_qp, ib);
}

static inline struct hca_dev *qp_dev(const struct hca_qp *qp)
{
	return to_dev(qp->ib.device);
}

static inline void hca_count(struct hca_dev *dev, enum hca_stat stat)
{
	atomic64_inc(&dev->stats[stat]);
}

static inline struct hca_send *hca_send_at(struct hca_qp *qp, u32 index)
{
	return qp->sq.slots + (size_t)(index & (qp->sq.size - 1)) * qp->sq.stride;
}

/* main.c: the wire, the port, and registration. */
void hca_hello(struct hca_dev *dev);
void hca_port_update(struct hca_dev *dev, const struct wire_port *port);

/* link.c: frames, and the engine. */
int hca_link_init(struct hca_dev *dev);
void hca_link_exit(struct hca_dev *dev);
int hca_tap(struct sk_buff *skb, struct net_device *netdev,
	    struct packet_type *type, struct net_device *orig);
bool hca_tx_room(struct hca_dev *dev);
struct sk_buff *hca_frame_alloc(struct hca_dev *dev, u32 body_len);
void hca_frame_send(struct hca_dev *dev, struct sk_buff *skb, enum wire_kind kind);
struct sk_buff *hca_packet_alloc(struct hca_dev *dev, const struct packet *packet,
				 u8 **payload);
void hca_packet_send(struct hca_dev *dev, struct sk_buff *skb);
void hca_packet_address(struct hca_dev *dev, const struct hca_av *av,
			struct packet *packet);
void hca_qp_wake(struct hca_qp *qp);
void hca_qp_forget(struct hca_qp *qp);

/* device.c: the device, its port, protection domains and address handles. */
extern const struct ib_device_ops hca_device_ops;
u16 hca_pkey(struct hca_dev *dev, u16 index);
int hca_pkey_index(struct hca_dev *dev, u16 pkey);
bool hca_owns_gid(struct hca_dev *dev, const u8 *gid);
bool hca_av_valid(struct hca_dev *dev, const struct rdma_ah_attr *attr);
void hca_av_read(struct hca_av *av, const struct rdma_ah_attr *attr);
void hca_av_write(const struct hca_av *av, struct rdma_ah_attr *attr);

/* cq.c */
extern const struct ib_device_ops hca_cq_ops;
void hca_complete(struct hca_cq *cq, const struct ib_wc *wc, bool solicited);
void hca_cq_clean(struct hca_cq *cq, const struct hca_qp *qp);

/* mr.c */
extern const struct ib_device_ops hca_mr_ops;
int hca_copy_local(struct hca_qp *qp, const struct ib_sge *sge, int num_sge,
		   u32 offset, void *data, u32 len, bool to_memory);
bool hca_remote_allowed(struct hca_qp *qp, u32 rkey, u64 address, u32 len,
			int access);
int hca_copy_remote(struct hca_qp *qp, u32 rkey, u64 address, void *data,
		    u32 len, bool to_memory);
u64 *hca_atomic_operand(struct hca_qp *qp, u32 rkey, u64 address);
int hca_fast_register(struct hca_qp *qp, struct hca_mr *mr, u32 key, int access);
int hca_invalidate(struct hca_qp *qp, u32 key);

/* rq.c: receive queues, shared ones included. */
extern const struct ib_device_ops hca_srq_ops;
int hca_rq_init(struct hca_rq *rq, u32 max_wr, u32 max_sge);
void hca_rq_free(struct hca_rq *rq);
void hca_rq_reset(struct hca_rq *rq);
int hca_rq_post(struct hca_rq *rq, const struct ib_recv_wr *wr,
		const struct ib_recv_wr **bad);
int hca_recv_take(struct hca_qp *qp, struct hca_recv *recv, u32 min_len);

/* post.c: work requests. */
extern const struct ib_device_ops hca_post_ops;
u32 hca_sends_end(struct hca_qp *qp);
void hca_send_done(struct hca_qp *qp, enum ib_wc_status status);
void hca_recv_done(struct hca_qp *qp, const struct hca_recv *recv,
		   struct ib_wc *wc, bool solicited);
int hca_send_payload(struct hca_qp *qp, struct hca_send *send, u32 offset,
		     void *data, u32 len);

/* qp.c: queue pairs. */
extern const struct ib_device_ops hca_qp_ops;
void hca_qp_event(struct hca_qp *qp, enum ib_event_type type);
void hca_qp_fail(struct hca_qp *qp);
bool hca_qp_run(struct hca_qp *qp);

/* ud.c: datagrams, management included. */
extern const struct ib_device_ops hca_multicast_ops;
bool hca_ud_run(struct hca_qp *qp);
void hca_ud_receive(struct hca_dev *dev, struct hca_qp *qp,
		    const struct packet *packet);
void hca_ud_receive_multicast(struct hca_dev *dev, const struct packet *packet,
			      const struct hca_qp *sender);

/* rc.c, rc_requester.c, rc_responder.c: reliable connections. */
bool hca_rc_run(struct hca_qp *qp);
void hca_rc_receive(struct hca_qp *qp, const struct packet *packet);
void hca_rc_start_sending(struct hca_qp *qp);
struct sk_buff *hca_rc_packet(struct hca_qp *qp, struct packet *packet,
			      u8 **payload);
u32 hca_rc_packets(const struct hca_qp *qp, u32 len);
bool hca_rc_request_run(struct hca_qp *qp);
void hca_rc_response(struct hca_qp *qp, const struct packet *packet);
bool hca_rc_respond_run(struct hca_qp *qp);
void hca_rc_request(struct hca_qp *qp, const struct packet *packet);

#endif
