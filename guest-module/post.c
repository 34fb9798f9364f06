// SPDX-License-Identifier: GPL-2.0
/* Work requests of queue pairs: how they are posted and completed. */
#include <linux/uaccess.h>

#include "hca.h"

/* ---- for the engine */

/* Where the send queue ends, for the engine. */
u32 hca_sends_end(struct hca_qp *qp)
{
	/* Pairs with post_one(): what is in the slots is visible. */
	return smp_load_acquire(&qp->sq.head);
}

static enum ib_wc_opcode completion_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return IB_WC_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return IB_WC_FETCH_ADD;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	default:
		return IB_WC_SEND;
	}
}

/* Completes the oldest work request of the send queue. */
void hca_send_done(struct hca_qp *qp, enum ib_wc_status status)
{
	struct hca_send *send = hca_send_at(qp, qp->sq.tail);
	bool report = status != IB_WC_SUCCESS || qp->signal_all ||
		      (send->flags & IB_SEND_SIGNALED);
	struct ib_wc wc = {
		.wr_id = send->wr_id,
		.status = status,
		.opcode = completion_opcode(send->opcode),
		.qp = &qp->ib,
		.byte_len = send->length,
		.port_num = HCA_PORT,
	};

	if (qp->req.cur == qp->sq.tail)
		qp->req.cur++;
	/* The slot is free: pairs with post_one(). */
	smp_store_release(&qp->sq.tail, qp->sq.tail + 1);
	if (report)
		hca_complete(to_cq(qp->ib.send_cq), &wc, false);
}

void hca_recv_done(struct hca_qp *qp, const struct hca_recv *recv,
		   struct ib_wc *wc, bool solicited)
{
	wc->wr_id = recv->wr_id;
	wc->qp = &qp->ib;
	wc->port_num = HCA_PORT;
	hca_complete(to_cq(qp->ib.recv_cq), wc, solicited);
}

/* Copies a part of what a send carries. Returns 0 or a negative error. */
int hca_send_payload(struct hca_qp *qp, struct hca_send *send, u32 offset,
		     void *data, u32 len)
{
	if (send->flags & IB_SEND_INLINE) {
		memcpy(data, (u8 *)send->sge + offset, len);
		return 0;
	}
	return hca_copy_local(qp, send->sge, send->num_sge, offset, data, len,
			      false);
}

/* ---- posting */

static int hca_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	struct hca_qp *qp = to_qp(ib);
	int err;

	if (qp->srq || READ_ONCE(qp->state) == IB_QPS_RESET) {
		*bad = wr;
		return -EINVAL;
	}
	err = hca_rq_post(&qp->rq, wr, bad);
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		hca_qp_wake(qp);
	return err;
}

/*
 * Collects inline data. Addresses of a user's work request are those of the
 * process that posts it, which is the current one.
 */
static int gather_inline(const struct hca_qp *qp, const struct ib_send_wr *wr,
			 u8 *data)
{
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (!qp->user)
			memcpy(data, (void *)(uintptr_t)sge->addr, sge->length);
		else if (copy_from_user(data, u64_to_user_ptr(sge->addr),
					sge->length))
			return -EFAULT;
		data += sge->length;
	}
	return 0;
}

/* Fills in what only sends of datagrams have. */
static int fill_datagram(struct hca_qp *qp, struct hca_send *send,
			 const struct ib_send_wr *wr)
{
	const struct ib_ud_wr *ud = ud_wr(wr);

	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EINVAL;
	if (!ud->ah)
		return -EINVAL;
	send->ud.av = to_ah(ud->ah)->av;
	send->ud.qpn = ud->remote_qpn & PACKET_QPN_MASK;
	/* The highest bit stands for the Q_Key of the queue pair. */
	send->ud.qkey = ud->remote_qkey & 0x80000000 ? qp->attr.qkey :
						       ud->remote_qkey;
	send->ud.pkey_index = qp->ib.qp_type == IB_QPT_GSI ?
			      ud->pkey_index : qp->attr.pkey_index;
	return 0;
}

/* Fills in what only sends of connections have. */
static int fill_connected(struct hca_qp *qp, struct hca_send *send,
			  const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		return 0;
	case IB_WR_SEND_WITH_INV:
		send->imm = wr->ex.invalidate_rkey;
		return 0;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		send->remote.address = rdma_wr(wr)->remote_addr;
		send->remote.rkey = rdma_wr(wr)->rkey;
		return 0;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		send->remote.address = atomic_wr(wr)->remote_addr;
		send->remote.rkey = atomic_wr(wr)->rkey;
		send->remote.compare_add = atomic_wr(wr)->compare_add;
		send->remote.swap = atomic_wr(wr)->swap;
		return send->length < sizeof(u64) ? -EINVAL : 0;
	case IB_WR_LOCAL_INV:
		if (qp->user)
			return -EINVAL;
		send->imm = wr->ex.invalidate_rkey;
		return 0;
	case IB_WR_REG_MR:
		if (qp->user)
			return -EINVAL;
		send->reg.mr = to_mr(reg_wr(wr)->mr);
		send->reg.key = reg_wr(wr)->key;
		send->reg.access = reg_wr(wr)->access;
		return 0;
	default:
		return -EINVAL;
	}
}

static int post_one(struct hca_qp *qp, const struct ib_send_wr *wr, u32 length,
		    const u8 *inlined)
{
	struct hca_sq *sq = &qp->sq;
	struct hca_send *send;
	unsigned long flags;
	int err = -ENOMEM;

	spin_lock_irqsave(&sq->lock, flags);
	if (sq->head - smp_load_acquire(&sq->tail) >= sq->size)
		goto out;
	send = hca_send_at(qp, sq->head);
	memset(send, 0, sizeof(*send));
	send->wr_id = wr->wr_id;
	send->opcode = wr->opcode;
	send->flags = wr->send_flags;
	send->length = length;
	send->imm = be32_to_cpu(wr->ex.imm_data);
	send->num_sge = wr->num_sge;
	err = qp->ib.qp_type == IB_QPT_RC ? fill_connected(qp, send, wr) :
					    fill_datagram(qp, send, wr);
	if (err)
		goto out;
	if (inlined)
		memcpy(send->sge, inlined, length);
	else
		memcpy(send->sge, wr->sg_list, wr->num_sge * sizeof(*send->sge));
	/* Pairs with hca_sends_end(). */
	smp_store_release(&sq->head, sq->head + 1);
out:
	spin_unlock_irqrestore(&sq->lock, flags);
	return err;
}

static int check_and_post(struct hca_qp *qp, const struct ib_send_wr *wr)
{
	u8 inlined[HCA_INLINE_MAX];
	u64 length = 0;
	int i, err;

	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_send_sge)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > HCA_MSG_MAX)
		return -EINVAL;
	if (!(wr->send_flags & IB_SEND_INLINE))
		return post_one(qp, wr, length, NULL);
	if (length > qp->cap.max_inline_data || length > sizeof(inlined))
		return -EINVAL;
	/* Answers would be written into the list. */
	if (wr->opcode == IB_WR_RDMA_READ ||
	    wr->opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	    wr->opcode == IB_WR_ATOMIC_FETCH_AND_ADD)
		return -EINVAL;
	err = gather_inline(qp, wr, inlined);
	return err ? err : post_one(qp, wr, length, inlined);
}

static int hca_post_send(struct ib_qp *ib, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct hca_qp *qp = to_qp(ib);
	enum ib_qp_state state = READ_ONCE(qp->state);
	int err = 0;

	/* In the error states, requests are accepted and flushed. */
	if (state == IB_QPS_RESET || state == IB_QPS_INIT || state == IB_QPS_RTR) {
		*bad = wr;
		return -EINVAL;
	}
	for (; wr && !err; wr = wr->next) {
		err = check_and_post(qp, wr);
		if (err)
			*bad = wr;
	}
	hca_qp_wake(qp);
	return err;
}

const struct ib_device_ops hca_post_ops = {
	.post_recv = hca_post_recv,
	.post_send = hca_post_send,
};
