// SPDX-License-Identifier: GPL-2.0
/*
 * The requester of a reliable connection (IBA 9.7).
 *
 * Work requests get packet sequence numbers (PSN) when their turn comes:
 *
 *	sq.tail            req.cur              head
 *	| sent, not acknowledged | partly sent | not started |
 *	req.una ..... req.sent_psn .... req.next_psn
 *
 * After a NAK, a missing response or a timeout, everything from una on is sent
 * again: the requester rewinds. max_psn remembers how far it had come, as
 * responses to what was sent before may still arrive.
 *
 * A READ is asked for in parts of HCA_READ_PACKETS responses, each of them a
 * request of its own. The ends of parts do not depend on losses, so that a
 * request that is repeated lies within the one that the responder remembers.
 */
#include <linux/jiffies.h>

#include "hca.h"

/*
 * Emulated machines stand still for some time now and then. Shorter timeouts
 * would only cause packets to be sent twice.
 */
#define TIMEOUT_MIN_MS	50

/* RNR NAK timer field in microseconds (IBA table 45). */
static const u32 rnr_timer_us[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120,
	160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720,
	40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
};

static bool awaits_answer(const struct hca_send *send)
{
	return send->opcode == IB_WR_RDMA_READ ||
	       send->opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	       send->opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

static bool is_local(const struct hca_send *send)
{
	return send->opcode == IB_WR_REG_MR || send->opcode == IB_WR_LOCAL_INV;
}

static bool is_write(const struct hca_send *send)
{
	return send->opcode == IB_WR_RDMA_WRITE ||
	       send->opcode == IB_WR_RDMA_WRITE_WITH_IMM;
}

/* The connection has failed at its oldest work request. */
static void fail(struct hca_qp *qp, enum ib_wc_status status)
{
	if (qp->sq.tail != hca_sends_end(qp))
		hca_send_done(qp, status);
	hca_qp_fail(qp);
}

void hca_rc_start_sending(struct hca_qp *qp)
{
	struct hca_requester *req = &qp->req;

	req->cur = qp->sq.tail;
	req->una = req->next_psn;
	req->sent_psn = req->next_psn;
	req->max_psn = req->next_psn;
	req->retries_left = qp->attr.retry_cnt;
	req->rnr_retries_left = qp->attr.rnr_retry;
}

/* ---- the timer */

/*
 * Time until a response counts as missing: 4.096 us * 2^timeout, or up to four
 * times as long (IBA 9.7.6.1.3).
 */
static unsigned long ack_timeout(const struct hca_qp *qp)
{
	u64 ms = div_u64(4ull * 4096 << qp->attr.timeout, NSEC_PER_MSEC);

	return msecs_to_jiffies(clamp_t(u64, ms, TIMEOUT_MIN_MS, INT_MAX / 2));
}

static void start_timing(struct hca_qp *qp)
{
	qp->req.timing = qp->attr.timeout && qp->req.una != qp->req.sent_psn;
	qp->req.deadline = jiffies + ack_timeout(qp);
}

/* Has the queue pair woken when its time is over. */
static void arm_timer(struct hca_qp *qp)
{
	unsigned long deadline = qp->req.deadline;

	if (!qp->req.timing)
		return;
	if (delayed_work_pending(&qp->timer) &&
	    time_before_eq(qp->timer_at, deadline))
		return;
	qp->timer_at = deadline;
	mod_delayed_work(qp_dev(qp)->wq, &qp->timer,
			 time_after(deadline, jiffies) ? deadline - jiffies : 0);
}

/* ---- sending again */

/* Continues at the oldest PSN that is not acknowledged. */
static void rewind_to_una(struct hca_qp *qp)
{
	struct hca_requester *req = &qp->req;
	u32 end = hca_sends_end(qp), i;

	for (i = qp->sq.tail; i != end; i++) {
		struct hca_send *send = hca_send_at(qp, i);
		int done;

		if (!send->started)
			break;
		done = psn_diff(req->una, send->first_psn);
		send->sent = clamp(done, 0, (int)send->packets);
	}
	req->cur = qp->sq.tail;
	req->sent_psn = req->una;
	req->read_count = 0;
	req->timing = false;
	req->rnr_wait = false;
}

static void retry(struct hca_qp *qp)
{
	if (!qp->req.retries_left) {
		fail(qp, IB_WC_RETRY_EXC_ERR);
		return;
	}
	qp->req.retries_left--;
	rewind_to_una(qp);
}

/* A response came, but not the one before: asks once for what is missing. */
static void gap(struct hca_qp *qp)
{
	if (qp->req.gap_seen)
		return;
	qp->req.gap_seen = true;
	retry(qp);
}

/* The time is over, for a response or for the receiver to become ready. */
static void expire(struct hca_qp *qp)
{
	struct hca_requester *req = &qp->req;

	if (!req->timing || time_before(jiffies, req->deadline))
		return;
	req->timing = false;
	if (req->rnr_wait) {
		req->rnr_wait = false;
		return;
	}
	hca_count(qp_dev(qp), HCA_STAT_RC_TIMEOUTS);
	req->gap_seen = false;
	retry(qp);
}

/* ---- requests */

static bool earlier_answers_missing(struct hca_qp *qp)
{
	u32 i;

	for (i = qp->sq.tail; i != qp->req.cur; i++)
		if (awaits_answer(hca_send_at(qp, i)))
			return true;
	return false;
}

static bool may_start(struct hca_qp *qp, const struct hca_send *send)
{
	/* What was sent before may have to be read again. */
	if (send->opcode == IB_WR_LOCAL_INV)
		return qp->req.cur == qp->sq.tail;
	return !(send->flags & IB_SEND_FENCE) || !earlier_answers_missing(qp);
}

static void execute_locally(struct hca_qp *qp, struct hca_send *send)
{
	int err;

	if (send->opcode == IB_WR_REG_MR)
		err = hca_fast_register(qp, send->reg.mr, send->reg.key,
					send->reg.access);
	else
		err = hca_invalidate(qp, send->imm);
	if (err)
		send->status = IB_WC_MW_BIND_ERR;
}

static void start(struct hca_qp *qp, struct hca_send *send)
{
	send->started = true;
	send->first_psn = qp->req.next_psn;
	send->sent = 0;
	if (is_local(send)) {
		send->packets = 0;
		execute_locally(qp, send);
	} else if (awaits_answer(send) && !qp->attr.max_rd_atomic) {
		send->packets = 0;
		send->status = IB_WC_LOC_QP_OP_ERR;
	} else if (awaits_answer(send) && send->opcode != IB_WR_RDMA_READ) {
		send->length = sizeof(u64);
		send->packets = 1;
	} else {
		send->packets = hca_rc_packets(qp, send->length);
	}
	qp->req.next_psn = psn_add(qp->req.next_psn, send->packets);
}

/* How many PSNs the next packet of a request takes. */
static u32 next_count(const struct hca_send *send)
{
	u32 end;

	if (send->opcode != IB_WR_RDMA_READ)
		return 1;
	end = (send->sent / HCA_READ_PACKETS + 1) * HCA_READ_PACKETS;
	return min(end, send->packets) - send->sent;
}

static bool window_open(const struct hca_qp *qp, const struct hca_send *send)
{
	u32 next = psn_add(send->first_psn, send->sent);
	u32 outstanding = psn_diff(next, qp->req.una);

	if (awaits_answer(send) && qp->req.read_count >= qp->attr.max_rd_atomic)
		return false;
	return !outstanding || outstanding + next_count(send) <= HCA_WINDOW;
}

static u8 send_opcode(const struct hca_send *send, bool first, bool last)
{
	if (is_write(send)) {
		bool imm = send->opcode == IB_WR_RDMA_WRITE_WITH_IMM;

		if (first && last)
			return imm ? RC_WRITE_ONLY_IMM : RC_WRITE_ONLY;
		if (last)
			return imm ? RC_WRITE_LAST_IMM : RC_WRITE_LAST;
		return first ? RC_WRITE_FIRST : RC_WRITE_MIDDLE;
	}
	if (last && send->opcode == IB_WR_SEND_WITH_IMM)
		return first ? RC_SEND_ONLY_IMM : RC_SEND_LAST_IMM;
	if (last && send->opcode == IB_WR_SEND_WITH_INV)
		return first ? RC_SEND_ONLY_INV : RC_SEND_LAST_INV;
	if (first && last)
		return RC_SEND_ONLY;
	if (last)
		return RC_SEND_LAST;
	return first ? RC_SEND_FIRST : RC_SEND_MIDDLE;
}

static void fill_request(struct hca_qp *qp, const struct hca_send *send,
			 struct packet *packet)
{
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	u32 offset = send->sent * mtu, rest = send->length - offset;
	bool first = !send->sent, last = send->sent + 1 == send->packets;

	packet->psn = psn_add(send->first_psn, send->sent);
	packet->ack_request = true;
	packet->rkey = send->remote.rkey;
	packet->address = send->remote.address;
	switch (send->opcode) {
	case IB_WR_RDMA_READ:
		packet->opcode = RC_READ_REQUEST;
		packet->address += offset;
		packet->dma_len = min(rest, next_count(send) * mtu);
		return;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		packet->opcode = RC_CMP_SWAP;
		packet->swap_add = send->remote.swap;
		packet->compare = send->remote.compare_add;
		return;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		packet->opcode = RC_FETCH_ADD;
		packet->swap_add = send->remote.compare_add;
		return;
	default:
		packet->opcode = send_opcode(send, first, last);
		packet->dma_len = send->length;
		packet->imm = send->imm;
		packet->invalidate = send->imm;
		packet->payload_len = min(rest, mtu);
		packet->solicited = last && (send->flags & IB_SEND_SOLICITED);
		packet->ack_request = last || !((send->sent + 1) % HCA_ACK_INTERVAL);
	}
}

/* Sends the next packet of a request. Without memory it counts as lost. */
static void send_next(struct hca_qp *qp, struct hca_send *send)
{
	struct hca_requester *req = &qp->req;
	u32 count = next_count(send);
	struct packet packet = {};
	struct sk_buff *skb;
	u8 *payload;

	fill_request(qp, send, &packet);
	skb = hca_rc_packet(qp, &packet, &payload);
	if (skb) {
		u32 offset = send->sent * ib_mtu_enum_to_int(qp->attr.path_mtu);

		if (packet.payload_len &&
		    hca_send_payload(qp, send, offset, payload, packet.payload_len)) {
			kfree_skb(skb);
			send->status = IB_WC_LOC_PROT_ERR;
			return;
		}
		hca_packet_send(qp_dev(qp), skb);
	}
	send->sent += count;
	req->sent_psn = psn_add(send->first_psn, send->sent);
	if (awaits_answer(send)) {
		req->reads[(req->read_head + req->read_count) % HCA_RD_ATOMIC_MAX] =
			req->sent_psn;
		req->read_count++;
	}
	if (psn_diff(req->sent_psn, req->max_psn) > 0)
		req->max_psn = req->sent_psn;
	else
		hca_count(qp_dev(qp), HCA_STAT_RC_RESENT);
	if (!req->timing)
		start_timing(qp);
}

/* ---- acknowledgements */

static void progress(struct hca_qp *qp, u32 una)
{
	struct hca_requester *req = &qp->req;

	req->una = una;
	if (psn_diff(una, req->sent_psn) > 0)
		req->sent_psn = una;
	while (req->read_count &&
	       psn_diff(req->reads[req->read_head], una) <= 0) {
		req->read_head = (req->read_head + 1) % HCA_RD_ATOMIC_MAX;
		req->read_count--;
	}
	req->retries_left = qp->attr.retry_cnt;
	req->rnr_retries_left = qp->attr.rnr_retry;
	req->gap_seen = false;
	if (!req->rnr_wait)
		start_timing(qp);
}

/*
 * All packets before @psn have arrived. Completes requests up to there, but
 * none that awaits an answer: una stays at it.
 */
static void acknowledged(struct hca_qp *qp, u32 psn)
{
	while (qp->sq.tail != hca_sends_end(qp)) {
		struct hca_send *send = hca_send_at(qp, qp->sq.tail);
		u32 end = psn_add(send->first_psn, send->packets);

		if (!send->started || awaits_answer(send) || send->status)
			break;
		if (psn_diff(end, psn) > 0) {
			if (psn_diff(psn, qp->req.una) > 0)
				progress(qp, psn);
			break;
		}
		if (is_local(send) && qp->req.cur == qp->sq.tail)
			break;
		if (psn_diff(end, qp->req.una) > 0)
			progress(qp, end);
		hca_send_done(qp, IB_WC_SUCCESS);
	}
}

/* What a request has sent before it was rewound, and was acknowledged since. */
static void skip_acknowledged(struct hca_qp *qp, struct hca_send *send)
{
	int done = psn_diff(qp->req.una, send->first_psn);

	if (done > (int)send->sent)
		send->sent = min_t(u32, done, send->packets);
}

/* Sends as much as is allowed. Returns whether it stopped to let others send. */
static bool send_requests(struct hca_qp *qp)
{
	struct hca_requester *req = &qp->req;
	int burst = 0;

	while (req->cur != hca_sends_end(qp)) {
		struct hca_send *send = hca_send_at(qp, req->cur);

		if (req->rnr_wait)
			return false;
		if (!send->started) {
			if (qp->state == IB_QPS_SQD || !may_start(qp, send))
				return false;
			start(qp, send);
		}
		if (send->status != IB_WC_SUCCESS) {
			/* It fails in its turn. */
			if (req->cur == qp->sq.tail)
				fail(qp, send->status);
			return false;
		}
		skip_acknowledged(qp, send);
		if (send->sent == send->packets) {
			req->cur++;
			if (is_local(send))
				acknowledged(qp, req->una);
			continue;
		}
		if (!window_open(qp, send))
			return false;
		if (burst == HCA_BURST || !hca_tx_room(qp_dev(qp)))
			return true;
		send_next(qp, send);
		burst++;
	}
	return false;
}

static bool drained(struct hca_qp *qp)
{
	const struct hca_requester *req = &qp->req;

	return req->una == req->next_psn;
}

bool hca_rc_request_run(struct hca_qp *qp)
{
	bool more;

	expire(qp);
	if (qp->state == IB_QPS_ERR)
		return false;
	more = send_requests(qp);
	if (qp->state == IB_QPS_ERR)
		return false;
	if (qp->state == IB_QPS_SQD && qp->req.drain && drained(qp)) {
		qp->req.drain = false;
		hca_qp_event(qp, IB_EVENT_SQ_DRAINED);
	}
	arm_timer(qp);
	return more;
}

/* ---- responses */

static enum ib_wc_status nak_status(u8 syndrome)
{
	switch (syndrome) {
	case SYNDROME_NAK_ACCESS:
		return IB_WC_REM_ACCESS_ERR;
	case SYNDROME_NAK_OPERATION:
		return IB_WC_REM_OP_ERR;
	default:
		return IB_WC_REM_INV_REQ_ERR;
	}
}

static void receiver_not_ready(struct hca_qp *qp, u8 syndrome)
{
	struct hca_requester *req = &qp->req;
	u32 us = rnr_timer_us[syndrome & 0x1f];

	hca_count(qp_dev(qp), HCA_STAT_RNR_NAK_RECEIVED);
	if (!req->rnr_retries_left) {
		fail(qp, IB_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	/* 7 means without end. */
	if (qp->attr.rnr_retry != 7)
		req->rnr_retries_left--;
	rewind_to_una(qp);
	req->rnr_wait = true;
	req->timing = true;
	req->deadline = jiffies + usecs_to_jiffies(us) + 1;
}

static void receive_ack(struct hca_qp *qp, const struct packet *packet)
{
	u8 kind = packet->syndrome & SYNDROME_KIND;
	u32 psn = packet->psn;

	if (kind == SYNDROME_ACK)
		psn = psn_add(psn, 1);
	/* PSNs of a NAK are not acknowledged, and those before are. */
	acknowledged(qp, psn);
	if (kind != SYNDROME_NAK || packet->syndrome == SYNDROME_NAK_PSN) {
		if (psn_diff(psn, qp->req.una) > 0) {
			gap(qp);
			return;
		}
		/* An acknowledgement of what is acknowledged. */
		if (psn != qp->req.una)
			return;
	}
	if (kind == SYNDROME_RNR_NAK) {
		receiver_not_ready(qp, packet->syndrome);
	} else if (packet->syndrome == SYNDROME_NAK_PSN) {
		hca_count(qp_dev(qp), HCA_STAT_SEQ_NAK_RECEIVED);
		gap(qp);
	} else if (kind == SYNDROME_NAK) {
		fail(qp, nak_status(packet->syndrome));
	}
}

/* Stores the answer to the oldest request, which awaits this PSN. */
static void receive_answer(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_send *send = hca_send_at(qp, qp->sq.tail);
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);
	u32 offset = psn_diff(packet->psn, send->first_psn) * mtu;
	u64 original = packet->original;
	int err;

	if (packet->flags & PKT_READ) {
		if (packet->payload_len != min(mtu, send->length - offset)) {
			fail(qp, IB_WC_BAD_RESP_ERR);
			return;
		}
		err = hca_copy_local(qp, send->sge, send->num_sge, offset,
				     (void *)packet->payload,
				     packet->payload_len, true);
	} else {
		err = hca_copy_local(qp, send->sge, send->num_sge, 0, &original,
				     sizeof(original), true);
	}
	if (err) {
		fail(qp, IB_WC_LOC_PROT_ERR);
		return;
	}
	progress(qp, psn_add(packet->psn, 1));
	if (qp->req.una == psn_add(send->first_psn, send->packets))
		hca_send_done(qp, IB_WC_SUCCESS);
	/* Requests behind it may have waited for it alone. */
	acknowledged(qp, qp->req.una);
}

static bool answers(const struct packet *packet, const struct hca_send *send)
{
	if (!send->started || !awaits_answer(send) || send->status)
		return false;
	return (packet->flags & PKT_READ) ? send->opcode == IB_WR_RDMA_READ :
					    send->opcode != IB_WR_RDMA_READ;
}

/* A response of the peer. */
void hca_rc_response(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_requester *req = &qp->req;

	/* Of what was never sent, or of what is done. */
	if (psn_diff(packet->psn, req->max_psn) >= 0 ||
	    psn_diff(packet->psn, req->una) < 0) {
		hca_count(qp_dev(qp), HCA_STAT_DUPLICATES);
		return;
	}
	if (packet->opcode == RC_ACK) {
		receive_ack(qp, packet);
		return;
	}
	acknowledged(qp, packet->psn);
	if (req->una != packet->psn) {
		gap(qp);
		return;
	}
	if (qp->sq.tail != hca_sends_end(qp) &&
	    answers(packet, hca_send_at(qp, qp->sq.tail)))
		receive_answer(qp, packet);
}
