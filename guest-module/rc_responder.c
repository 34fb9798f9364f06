// SPDX-License-Identifier: GPL-2.0
/*
 * The responder of a reliable connection (IBA 9.7).
 *
 * Requests are executed when they arrive. What is sent in return is kept until
 * the queue pair has its turn and the wire has room: first the answers to READ
 * and atomic requests, in their order, then one acknowledgement or NAK, which
 * covers everything before. Memory that a READ names is read when its answer is
 * sent. Answers stay for duplicates: an atomic operation is executed once.
 */
#include "hca.h"

/* ---- acknowledgements and refusals */

static void ack(struct hca_qp *qp)
{
	if (qp->resp.ack_due)
		return;
	qp->resp.ack_due = true;
	qp->resp.syndrome = SYNDROME_ACK_NO_CREDIT;
}

/* Asks to send the expected packet, now or later. One NAK is enough. */
static void nak(struct hca_qp *qp, u8 syndrome)
{
	if (qp->resp.nak_sent)
		return;
	qp->resp.nak_sent = true;
	qp->resp.ack_due = true;
	qp->resp.syndrome = syndrome;
}

/*
 * Refuses a request for good. The receive request that it used, if any, is
 * completed with @status, and the connection fails once the NAK is sent.
 */
static void refuse(struct hca_qp *qp, u8 syndrome, enum ib_wc_status status)
{
	struct hca_responder *resp = &qp->resp;
	struct ib_wc wc = { .status = status, .opcode = IB_WC_RECV };

	resp->ack_due = true;
	resp->syndrome = syndrome;
	resp->refused = true;
	if (resp->have_recv) {
		resp->have_recv = false;
		hca_recv_done(qp, &resp->recv, &wc, true);
	}
}

static void refuse_invalid(struct hca_qp *qp)
{
	refuse(qp, SYNDROME_NAK_INVALID, IB_WC_LOC_QP_OP_ERR);
}

static void refuse_access(struct hca_qp *qp)
{
	refuse(qp, SYNDROME_NAK_ACCESS, IB_WC_LOC_ACCESS_ERR);
}

/* The expected packet has arrived and was executed. */
static void accept(struct hca_qp *qp, u32 count, bool message_ends)
{
	qp->resp.epsn = psn_add(qp->resp.epsn, count);
	if (message_ends)
		qp->resp.msn = psn_add(qp->resp.msn, 1);
}

/* ---- answers */

static u32 answers_max(const struct hca_qp *qp)
{
	return qp->attr.max_dest_rd_atomic;
}

static u32 oldest_answer(const struct hca_qp *qp)
{
	u32 count = qp->resp.answer_count;

	return count - min(count, answers_max(qp));
}

static struct hca_answer *answer_at(struct hca_qp *qp, u32 index)
{
	return &qp->resp.answers[index % answers_max(qp)];
}

static bool answer_unsent(const struct hca_answer *answer)
{
	return answer->next < answer->packets;
}

/*
 * Takes an entry for an answer that is to be sent. NULL if the peer has more
 * requests outstanding than was agreed upon.
 */
static struct hca_answer *answer_new(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_answer *answer;

	if (!answers_max(qp))
		return NULL;
	answer = answer_at(qp, qp->resp.answer_count);
	if (qp->resp.answer_count >= answers_max(qp) && answer_unsent(answer) &&
	    !answer->duplicate)
		return NULL;
	/* Without wrapping past a multiple of the size of the ring. */
	qp->resp.answer_count++;
	if (qp->resp.answer_count >= 2 * answers_max(qp))
		qp->resp.answer_count -= answers_max(qp);
	memset(answer, 0, sizeof(*answer));
	answer->opcode = packet->opcode;
	answer->psn = packet->psn;
	answer->packets = 1;
	answer->address = packet->address;
	answer->rkey = packet->rkey;
	return answer;
}

/* The answer that has a packet with this PSN. */
static struct hca_answer *answer_find(struct hca_qp *qp, u32 psn)
{
	u32 i;

	for (i = oldest_answer(qp); i != qp->resp.answer_count; i++) {
		struct hca_answer *answer = answer_at(qp, i);
		int offset = psn_diff(psn, answer->psn);

		if (offset >= 0 && offset < (int)answer->packets)
			return answer;
	}
	return NULL;
}

static u8 read_opcode(const struct hca_answer *answer)
{
	bool first = answer->next == answer->base;
	bool last = answer->next + 1 == answer->packets;

	if (first && last)
		return RC_READ_ONLY;
	if (last)
		return RC_READ_LAST;
	return first ? RC_READ_FIRST : RC_READ_MIDDLE;
}

static void send_answer_packet(struct hca_qp *qp, struct hca_answer *answer)
{
	struct packet packet = {
		.psn = psn_add(answer->psn, answer->next),
		.syndrome = SYNDROME_ACK_NO_CREDIT,
		.msn = qp->resp.msn,
	};
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	u32 offset = answer->next * mtu;
	struct sk_buff *skb;
	u8 *payload;

	if (answer->opcode == RC_READ_REQUEST) {
		packet.opcode = read_opcode(answer);
		packet.payload_len = min(mtu, answer->length - offset);
	} else {
		packet.opcode = RC_ATOMIC_ACK;
		packet.original = answer->original;
	}
	answer->next++;
	/* Without memory it counts as lost: the peer asks again. */
	skb = hca_rc_packet(qp, &packet, &payload);
	if (!skb)
		return;
	if (packet.payload_len &&
	    hca_copy_remote(qp, answer->rkey, answer->address + offset, payload,
			    packet.payload_len, false)) {
		/* The region has gone since. */
		kfree_skb(skb);
		answer->next = answer->packets;
		if (!qp->resp.refused)
			refuse_access(qp);
		return;
	}
	hca_packet_send(qp_dev(qp), skb);
}

static void send_ack(struct hca_qp *qp)
{
	struct hca_responder *resp = &qp->resp;
	u8 kind = resp->syndrome & SYNDROME_KIND;
	struct packet packet = {
		.opcode = RC_ACK,
		.syndrome = resp->syndrome,
		.msn = resp->msn,
		/* A NAK names the expected packet. */
		.psn = kind == SYNDROME_ACK ? psn_add(resp->epsn, PACKET_PSN_MASK) :
					      resp->epsn,
	};
	struct sk_buff *skb;
	u8 *payload;

	resp->ack_due = false;
	if (kind == SYNDROME_RNR_NAK)
		hca_count(qp_dev(qp), HCA_STAT_RNR_NAK_SENT);
	if (resp->syndrome == SYNDROME_NAK_PSN)
		hca_count(qp_dev(qp), HCA_STAT_SEQ_NAK_SENT);
	skb = hca_rc_packet(qp, &packet, &payload);
	if (skb)
		hca_packet_send(qp_dev(qp), skb);
}

/* Sends what is due. Returns whether it stopped to let others send. */
bool hca_rc_respond_run(struct hca_qp *qp)
{
	struct hca_responder *resp = &qp->resp;
	int burst = 0;
	u32 i;

	for (i = oldest_answer(qp); i != resp->answer_count; i++) {
		struct hca_answer *answer = answer_at(qp, i);

		while (answer_unsent(answer)) {
			if (burst++ == HCA_BURST || !hca_tx_room(qp_dev(qp)))
				return true;
			send_answer_packet(qp, answer);
		}
	}
	if (!resp->ack_due)
		return false;
	if (!hca_tx_room(qp_dev(qp)))
		return true;
	send_ack(qp);
	if (resp->refused) {
		hca_qp_event(qp, resp->syndrome == SYNDROME_NAK_ACCESS ?
				 IB_EVENT_QP_ACCESS_ERR : IB_EVENT_QP_REQ_ERR);
		hca_qp_fail(qp);
	}
	return false;
}

/* ---- READ and atomic requests */

static void execute_read(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_answer *answer;

	/* Nothing is read of a length of 0, and keys are not looked at. */
	if (packet->dma_len > HCA_MSG_MAX ||
	    !(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ) ||
	    (packet->dma_len &&
	     !hca_remote_allowed(qp, packet->rkey, packet->address,
				 packet->dma_len, IB_ACCESS_REMOTE_READ))) {
		refuse_access(qp);
		return;
	}
	answer = answer_new(qp, packet);
	if (!answer) {
		refuse_invalid(qp);
		return;
	}
	answer->length = packet->dma_len;
	answer->packets = hca_rc_packets(qp, packet->dma_len);
	accept(qp, answer->packets, true);
}

static void execute_atomic(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_answer *answer;
	u64 *operand, old;

	operand = hca_atomic_operand(qp, packet->rkey, packet->address);
	if (!operand) {
		refuse_access(qp);
		return;
	}
	if (packet->address % sizeof(u64) || (uintptr_t)operand % sizeof(u64)) {
		refuse_invalid(qp);
		return;
	}
	answer = answer_new(qp, packet);
	if (!answer) {
		refuse_invalid(qp);
		return;
	}
	/* Atomic with regard to other operations of this device. */
	old = READ_ONCE(*operand);
	if (packet->opcode == RC_FETCH_ADD)
		WRITE_ONCE(*operand, old + packet->swap_add);
	else if (old == packet->compare)
		WRITE_ONCE(*operand, packet->swap_add);
	answer->original = old;
	accept(qp, 1, true);
}

/* ---- SEND and RDMA WRITE */

static bool message_fits(struct hca_qp *qp, const struct packet *packet)
{
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	bool first = packet->flags & PKT_FIRST, last = packet->flags & PKT_LAST;
	enum hca_message kind = packet->flags & PKT_WRITE ? HCA_IN_WRITE : HCA_IN_SEND;

	/* Messages are not interleaved. */
	if (qp->resp.message != (first ? HCA_NO_MESSAGE : kind))
		return false;
	if (!last)
		return packet->payload_len == mtu;
	return packet->payload_len <= mtu && (first || packet->payload_len);
}

/* Takes a receive request. Returns false, and sends RNR NAK, if there is none. */
static bool take_recv(struct hca_qp *qp)
{
	struct hca_responder *resp = &qp->resp;

	if (!resp->have_recv) {
		resp->have_recv = !hca_recv_take(qp, &resp->recv, 0);
		resp->received = 0;
	}
	if (!resp->have_recv)
		nak(qp, SYNDROME_RNR_NAK | qp->attr.min_rnr_timer);
	return resp->have_recv;
}

static bool execute_send(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_responder *resp = &qp->resp;
	int err;

	if (resp->received > HCA_MSG_MAX - packet->payload_len) {
		refuse_invalid(qp);
		return false;
	}
	err = hca_copy_local(qp, resp->recv.sge, resp->recv.num_sge,
			     resp->received, (void *)packet->payload,
			     packet->payload_len, true);
	if (err == -EMSGSIZE) {
		refuse(qp, SYNDROME_NAK_INVALID, IB_WC_LOC_LEN_ERR);
		return false;
	}
	if (err) {
		refuse(qp, SYNDROME_NAK_OPERATION, IB_WC_LOC_PROT_ERR);
		return false;
	}
	if ((packet->flags & PKT_IETH) && hca_invalidate(qp, packet->invalidate)) {
		refuse_access(qp);
		return false;
	}
	resp->received += packet->payload_len;
	return true;
}

static bool execute_write(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_responder *resp = &qp->resp;
	u32 len = packet->payload_len;

	if (packet->flags & PKT_FIRST) {
		resp->write_address = packet->address;
		resp->write_rkey = packet->rkey;
		resp->write_left = packet->dma_len;
		resp->write_length = packet->dma_len;
		if (!(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_WRITE) ||
		    (packet->dma_len &&
		     !hca_remote_allowed(qp, packet->rkey, packet->address,
					 packet->dma_len, IB_ACCESS_REMOTE_WRITE))) {
			refuse_access(qp);
			return false;
		}
	}
	if (resp->write_length > HCA_MSG_MAX || len > resp->write_left ||
	    ((packet->flags & PKT_LAST) && len != resp->write_left)) {
		refuse_invalid(qp);
		return false;
	}
	if (len && hca_copy_remote(qp, resp->write_rkey, resp->write_address,
				   (void *)packet->payload, len, true)) {
		refuse_access(qp);
		return false;
	}
	resp->write_address += len;
	resp->write_left -= len;
	return true;
}

static void complete_recv(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_responder *resp = &qp->resp;
	bool write = packet->flags & PKT_WRITE;
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = write ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV,
		.byte_len = write ? resp->write_length : resp->received,
		.src_qp = qp->attr.dest_qp_num,
		.slid = packet->slid,
		.sl = packet->sl,
		.pkey_index = qp->attr.pkey_index,
	};

	if (packet->flags & PKT_IMM) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = cpu_to_be32(packet->imm);
	} else if (packet->flags & PKT_IETH) {
		wc.wc_flags |= IB_WC_WITH_INVALIDATE;
		wc.ex.invalidate_rkey = packet->invalidate;
	}
	resp->have_recv = false;
	hca_recv_done(qp, &resp->recv, &wc, packet->solicited);
}

/* A packet of a SEND or of an RDMA WRITE. */
static void execute_message(struct hca_qp *qp, const struct packet *packet)
{
	bool write = packet->flags & PKT_WRITE, last = packet->flags & PKT_LAST;
	/* Immediate data of a WRITE needs a receive request, too. */
	bool uses_recv = !write || (packet->flags & PKT_IMM);

	if (!message_fits(qp, packet)) {
		refuse_invalid(qp);
		return;
	}
	if (uses_recv && !take_recv(qp))
		return;
	if (!(write ? execute_write(qp, packet) : execute_send(qp, packet)))
		return;
	qp->resp.message = last ? HCA_NO_MESSAGE : write ? HCA_IN_WRITE : HCA_IN_SEND;
	accept(qp, 1, last);
	if (last && uses_recv)
		complete_recv(qp, packet);
	if (packet->ack_request)
		ack(qp);
}

/* ---- duplicates */

/* Sends an answer again, a READ from the packet on that the peer misses. */
static void repeat_answer(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_answer *answer = answer_find(qp, packet->psn);
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	u32 base;

	if (!answer || answer->opcode != packet->opcode ||
	    answer->rkey != packet->rkey)
		return;
	base = psn_diff(packet->psn, answer->psn);
	/* The rest of the same request, and nothing else. */
	if (packet->address != answer->address + (u64)base * mtu)
		return;
	if (packet->opcode == RC_READ_REQUEST &&
	    packet->dma_len != answer->length - base * mtu)
		return;
	answer->duplicate = true;
	answer->base = base;
	answer->next = base;
}

static void receive_duplicate(struct hca_qp *qp, const struct packet *packet)
{
	hca_count(qp_dev(qp), HCA_STAT_DUPLICATES);
	if (packet->flags & (PKT_READ | PKT_ATOMIC))
		repeat_answer(qp, packet);
	else
		ack(qp);
}

/* A request of the peer. */
void hca_rc_request(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_responder *resp = &qp->resp;
	int ahead = psn_diff(packet->psn, resp->epsn);

	if (resp->refused)
		return;
	if (ahead < 0) {
		receive_duplicate(qp, packet);
		return;
	}
	if (ahead > 0) {
		nak(qp, SYNDROME_NAK_PSN);
		return;
	}
	if (!resp->established) {
		resp->established = true;
		if (qp->state == IB_QPS_RTR)
			hca_qp_event(qp, IB_EVENT_COMM_EST);
	}
	/* A NAK that is due would ask for this very packet. */
	resp->nak_sent = false;
	if (resp->ack_due)
		resp->syndrome = SYNDROME_ACK_NO_CREDIT;
	if (!(packet->flags & (PKT_READ | PKT_ATOMIC))) {
		execute_message(qp, packet);
	} else if (resp->message != HCA_NO_MESSAGE) {
		refuse_invalid(qp);
	} else if (packet->flags & PKT_READ) {
		execute_read(qp, packet);
	} else {
		execute_atomic(qp, packet);
	}
}
