/* SPDX-License-Identifier: GPL-2.0 */
/*
 * InfiniBand packets (IBA volume 1, chapters 7 to 9):
 *
 *	LRH 8 | GRH 40, if global | BTH 12 | headers of the operation |
 *	payload | padding | ICRC 4
 *
 * The ICRC is written as 0 and not checked.
 */
#ifndef HEDDLE_PACKET_H
#define HEDDLE_PACKET_H

#include "portable.h"

#define PACKET_LRH_LEN		8
#define PACKET_GRH_LEN		40
#define PACKET_BTH_LEN		12
#define PACKET_ICRC_LEN		4
/* LRH, GRH, BTH and the longest headers of an operation: AtomicETH. */
#define PACKET_HEADERS_MAX	(8 + 40 + 12 + 28)
/* The length field of the LRH has 11 bits and counts words. */
#define PACKET_LEN_MAX		(0x7ff * 4)

#define PACKET_PSN_MASK		0xffffffu
#define PACKET_QPN_MASK		0xffffffu
#define PACKET_LID_PERMISSIVE	0xffff
#define PACKET_LID_MULTICAST	0xc000

/* BTH opcodes of reliable connections and unreliable datagrams. */
enum packet_opcode {
	RC_SEND_FIRST		= 0x00,
	RC_SEND_MIDDLE		= 0x01,
	RC_SEND_LAST		= 0x02,
	RC_SEND_LAST_IMM	= 0x03,
	RC_SEND_ONLY		= 0x04,
	RC_SEND_ONLY_IMM	= 0x05,
	RC_WRITE_FIRST		= 0x06,
	RC_WRITE_MIDDLE		= 0x07,
	RC_WRITE_LAST		= 0x08,
	RC_WRITE_LAST_IMM	= 0x09,
	RC_WRITE_ONLY		= 0x0a,
	RC_WRITE_ONLY_IMM	= 0x0b,
	RC_READ_REQUEST		= 0x0c,
	RC_READ_FIRST		= 0x0d,
	RC_READ_MIDDLE		= 0x0e,
	RC_READ_LAST		= 0x0f,
	RC_READ_ONLY		= 0x10,
	RC_ACK			= 0x11,
	RC_ATOMIC_ACK		= 0x12,
	RC_CMP_SWAP		= 0x13,
	RC_FETCH_ADD		= 0x14,
	RC_SEND_LAST_INV	= 0x16,
	RC_SEND_ONLY_INV	= 0x17,
	UD_SEND			= 0x64,
	UD_SEND_IMM		= 0x65,
};

/* What an opcode means. */
enum packet_flags {
	PKT_KNOWN	= 1 << 0,
	PKT_SEND	= 1 << 1,
	PKT_WRITE	= 1 << 2,
	PKT_READ	= 1 << 3,	/* request */
	PKT_ATOMIC	= 1 << 4,	/* request */
	PKT_RESPONSE	= 1 << 5,	/* of the responder of a connection */
	PKT_DATAGRAM	= 1 << 6,
	PKT_FIRST	= 1 << 7,	/* begins a message */
	PKT_LAST	= 1 << 8,	/* ends a message */
	PKT_PAYLOAD	= 1 << 9,	/* a payload is allowed */
	/* Headers, in the order in which they stand in the packet. */
	PKT_RETH	= 1 << 10,
	PKT_ATOMIC_ETH	= 1 << 11,
	PKT_DETH	= 1 << 12,
	PKT_AETH	= 1 << 13,
	PKT_ATOMIC_ACK	= 1 << 14,
	PKT_IMM		= 1 << 15,
	PKT_IETH	= 1 << 16,
};

/* Syndromes of an AETH: the kind is in the upper 3 bits. */
enum {
	SYNDROME_KIND		= 0xe0,
	SYNDROME_ACK		= 0x00,
	SYNDROME_ACK_NO_CREDIT	= 0x1f,	/* no end-to-end flow control */
	SYNDROME_RNR_NAK	= 0x20,	/* and the timer */
	SYNDROME_NAK		= 0x60,
	SYNDROME_NAK_PSN	= 0x60,
	SYNDROME_NAK_INVALID	= 0x61,
	SYNDROME_NAK_ACCESS	= 0x62,
	SYNDROME_NAK_OPERATION	= 0x63,
};

/* A packet. Fields of headers that its opcode does not have are 0. */
struct packet {
	u32 flags;		/* enum packet_flags */
	u8 opcode;
	/* LRH */
	u8 vl;
	u8 sl;
	u16 dlid;
	u16 slid;
	/* GRH */
	bool global;
	u8 traffic_class;
	u8 hop_limit;
	u32 flow_label;
	u8 sgid[16];
	u8 dgid[16];
	/* BTH */
	bool solicited;
	bool migrated;
	bool ack_request;
	u16 pkey;
	u32 dest_qpn;
	u32 psn;
	/* RETH, AtomicETH */
	u64 address;
	u32 rkey;
	u32 dma_len;
	u64 swap_add;
	u64 compare;
	/* DETH */
	u32 qkey;
	u32 src_qpn;
	/* AETH, AtomicAckETH */
	u8 syndrome;
	u32 msn;
	u64 original;
	/* ImmDt as a number, IETH */
	u32 imm;
	u32 invalidate;

	u32 payload_len;	/* without padding */
	/* Set by packet_read() only. */
	const u8 *payload;
	const u8 *grh;		/* NULL: none */
};

/* The flags of an opcode; 0 for an unknown one. */
u32 packet_flags(u8 opcode);

/*
 * Reads a packet of exactly @len bytes. Returns false, and leaves @packet
 * undefined, if it is none. Pointers of @packet point into @raw.
 */
bool packet_read(struct packet *packet, const u8 *raw, size_t len);

/* Length of the headers in front of the payload. */
u32 packet_headers_len(const struct packet *packet);

/* Length of the whole packet. */
u32 packet_len(const struct packet *packet);

/*
 * Writes the headers in front of the payload, padding and ICRC into
 * packet_len() bytes, and returns where the payload of payload_len bytes has to
 * be put. flags are derived from the opcode.
 */
u8 *packet_write(const struct packet *packet, u8 *raw);

/* a - b in the circle of packet sequence numbers: -2^23 to 2^23 - 1. */
static inline int psn_diff(u32 a, u32 b)
{
	return (int)((a - b) << 8) >> 8;
}

static inline u32 psn_add(u32 psn, u32 count)
{
	return (psn + count) & PACKET_PSN_MASK;
}

static inline bool packet_is_multicast(const struct packet *packet)
{
	return packet->dlid >= PACKET_LID_MULTICAST &&
	       packet->dlid != PACKET_LID_PERMISSIVE;
}

/* Whether a P_Key of a packet matches one of a table (IBA 10.9.3). */
static inline bool pkey_matches(u16 own, u16 other)
{
	return (own & 0x7fff) && !((own ^ other) & 0x7fff) &&
	       ((own | other) & 0x8000);
}

#endif
