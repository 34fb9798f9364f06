/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages between this module and the emulated fabric. src/sim/adapter_wire.rs
 * is the other side.
 *
 *	Ethernet header 14 | kind 1 | version 1 | length 2 | body | padding
 *
 * All fields are big-endian. Versions other than 1 are ignored.
 *
 *	kind	body
 *	1	a whole InfiniBand packet, LRH to ICRC; both directions
 *	2	the state of the port; host to guest
 *	3	hello: the driver asks for the state of the port; guest to host
 *
 * The host answers a hello with the state of the port and the sequence number
 * of the hello. It also sends the state after each change, with a sequence
 * number of 0.
 */
#ifndef HEDDLE_WIRE_H
#define HEDDLE_WIRE_H

#include "portable.h"

/* IEEE 802: for local experiments. */
#define WIRE_ETHERTYPE		0x88b5
#define WIRE_VERSION		1
#define WIRE_HEADER_LEN		4

/* First bytes of the MAC addresses that the host gives to wires. */
#define WIRE_MAC_PREFIX		{ 0x06, 0x68, 0x63 }

enum wire_kind {
	WIRE_PACKET	= 1,
	WIRE_PORT	= 2,
	WIRE_HELLO	= 3,
};

#define WIRE_GUIDS_MAX		16
#define WIRE_PKEYS_MAX		128

/* Offsets in the body of a port message. */
enum {
	WIRE_PORT_NODE_GUID	= 0,
	WIRE_PORT_SYSTEM_GUID	= 8,
	WIRE_PORT_GUID		= 16,
	WIRE_PORT_GID_PREFIX	= 24,
	WIRE_PORT_CAPABILITY	= 32,
	WIRE_PORT_REGISTRATIONS	= 36,	/* changes: clients register again */
	WIRE_PORT_FIRST_QP	= 40,
	WIRE_PORT_QP_COUNT	= 44,
	WIRE_PORT_HELLO		= 48,	/* the hello that it answers, or 0 */
	WIRE_PORT_LID		= 52,
	WIRE_PORT_SM_LID	= 54,
	WIRE_PORT_LMC		= 56,
	WIRE_PORT_SM_SL		= 57,
	WIRE_PORT_STATE		= 58,
	WIRE_PORT_PHYS_STATE	= 59,
	WIRE_PORT_MTU_CAP	= 60,
	WIRE_PORT_MTU		= 61,
	WIRE_PORT_WIDTH		= 62,
	WIRE_PORT_SUBNET_TIMEOUT = 63,
	WIRE_PORT_SPEED		= 64,	/* one bit: 1 SDR ... 128 NDR */
	WIRE_PORT_GUID_COUNT	= 66,
	WIRE_PORT_PKEY_COUNT	= 67,
	WIRE_PORT_GUIDS		= 72,
	WIRE_PORT_PKEYS		= 200,
	WIRE_PORT_LEN		= 456,
};

/* Offsets in the body of a hello. */
enum {
	WIRE_HELLO_SEQUENCE	= 0,	/* not 0 */
	WIRE_HELLO_FLAGS	= 4,
	WIRE_HELLO_NODE_DESC	= 8,
	WIRE_HELLO_LEN		= 80,
};

#define WIRE_HELLO_ISSM		1	/* a subnet manager has opened issm */
#define WIRE_NODE_DESC_LEN	64

/* The state of a port as the host tells it, in the byte order of the CPU. */
struct wire_port {
	u64 node_guid;
	u64 system_guid;
	u64 port_guid;
	u64 gid_prefix;
	u32 capability;
	u32 registrations;
	u32 first_qp;
	u32 qp_count;
	u32 hello;
	u16 lid;		/* 0: none */
	u16 sm_lid;		/* 0: none */
	u8 lmc;
	u8 sm_sl;
	u8 state;		/* 1 Down ... 4 Active */
	u8 phys_state;
	u8 mtu_cap;		/* 1: 256 ... 5: 4096 */
	u8 mtu;
	u8 width;
	u8 subnet_timeout;
	u16 speed;
	u16 guid_count;
	u16 pkey_count;
	u64 guids[WIRE_GUIDS_MAX];
	u16 pkeys[WIRE_PKEYS_MAX];
};

/*
 * Splits a message, without the Ethernet header. Returns false if it is none;
 * otherwise @body and @body_len lie within @message.
 */
bool wire_read(const u8 *message, size_t len, enum wire_kind *kind,
	       const u8 **body, size_t *body_len);

/* Writes the header of a message, WIRE_HEADER_LEN bytes. */
void wire_header_write(u8 *header, enum wire_kind kind, size_t body_len);

/*
 * Reads the body of a port message. Returns false, and leaves @port undefined,
 * if a value is outside its range.
 */
bool wire_port_read(struct wire_port *port, const u8 *body, size_t len);

/* Writes the body of a hello, WIRE_HELLO_LEN bytes. */
void wire_hello_write(u8 *body, u32 sequence, u32 flags, const char *node_desc);

#endif
