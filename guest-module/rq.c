// SPDX-License-Identifier: GPL-2.0
/* Receive queues, of queue pairs and shared ones (SRQ). */
#include <linux/log2.h>
#include <linux/mm.h>

#include "hca.h"

/* What a slot holds: as struct hca_recv, with max_sge entries. */
static struct hca_recv *slot(struct hca_rq *rq, u32 index)
{
	return rq->slots + (size_t)(index & (rq->size - 1)) * rq->stride;
}

/* A queue without slots, for max_wr of 0, takes nothing. */
int hca_rq_init(struct hca_rq *rq, u32 max_wr, u32 max_sge)
{
	if (max_wr > HCA_WR_MAX || max_sge > HCA_SGE_MAX)
		return -EINVAL;
	spin_lock_init(&rq->lock);
	rq->max_sge = max_sge;
	rq->max_wr = 0;
	rq->size = 0;
	if (!max_wr)
		return 0;
	rq->size = roundup_pow_of_two(max_wr);
	rq->max_wr = rq->size;
	rq->stride = struct_size((struct hca_recv *)NULL, sge, 0) +
		     max_sge * sizeof(struct ib_sge);
	rq->slots = kvcalloc(rq->size, rq->stride, GFP_KERNEL_ACCOUNT);
	return rq->slots ? 0 : -ENOMEM;
}

void hca_rq_free(struct hca_rq *rq)
{
	kvfree(rq->slots);
	rq->slots = NULL;
}

void hca_rq_reset(struct hca_rq *rq)
{
	unsigned long flags;

	spin_lock_irqsave(&rq->lock, flags);
	rq->head = 0;
	rq->tail = 0;
	spin_unlock_irqrestore(&rq->lock, flags);
}

int hca_rq_post(struct hca_rq *rq, const struct ib_recv_wr *wr,
		const struct ib_recv_wr **bad)
{
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&rq->lock, flags);
	for (; wr; wr = wr->next) {
		struct hca_recv *recv;

		if (wr->num_sge < 0 || wr->num_sge > rq->max_sge) {
			err = -EINVAL;
			break;
		}
		if (rq->head - rq->tail >= rq->size) {
			err = -ENOMEM;
			break;
		}
		recv = slot(rq, rq->head);
		recv->wr_id = wr->wr_id;
		recv->num_sge = wr->num_sge;
		memcpy(recv->sge, wr->sg_list, wr->num_sge * sizeof(*recv->sge));
		rq->head++;
	}
	spin_unlock_irqrestore(&rq->lock, flags);
	if (err)
		*bad = wr;
	return err;
}

static u64 recv_len(const struct hca_recv *recv)
{
	u64 len = 0;
	int i;

	for (i = 0; i < recv->num_sge; i++)
		len += recv->sge[i].length;
	return len;
}

static void report_limit(struct hca_srq *srq)
{
	struct ib_event event = {
		.device = srq->ib.device,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
		.element.srq = &srq->ib,
	};

	if (srq->ib.event_handler)
		srq->ib.event_handler(&event, srq->ib.srq_context);
}

/*
 * Takes the next receive request of a queue pair, from its own queue or the
 * shared one. Returns -ENOBUFS if there is none, and -EMSGSIZE, leaving it
 * there, if it has less space than @min_len.
 */
int hca_recv_take(struct hca_qp *qp, struct hca_recv *recv, u32 min_len)
{
	struct hca_srq *srq = qp->srq;
	struct hca_rq *rq = srq ? &srq->rq : &qp->rq;
	struct hca_recv *next;
	bool below = false;
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&rq->lock, flags);
	if (rq->head == rq->tail) {
		err = -ENOBUFS;
		goto out;
	}
	next = slot(rq, rq->tail);
	if (min_len && recv_len(next) < min_len) {
		err = -EMSGSIZE;
		goto out;
	}
	recv->wr_id = next->wr_id;
	recv->num_sge = next->num_sge;
	memcpy(recv->sge, next->sge, next->num_sge * sizeof(*recv->sge));
	rq->tail++;
	if (srq && srq->limit && rq->head - rq->tail < srq->limit) {
		srq->limit = 0;
		below = true;
	}
out:
	spin_unlock_irqrestore(&rq->lock, flags);
	if (below)
		report_limit(srq);
	return err;
}

static int hca_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *attr,
			  struct ib_udata *udata)
{
	struct hca_srq *srq = to_srq(ib);
	int err;

	if (attr->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	if (!attr->attr.max_wr)
		return -EINVAL;
	err = hca_rq_init(&srq->rq, attr->attr.max_wr, attr->attr.max_sge);
	if (err)
		return err;
	attr->attr.max_wr = srq->rq.max_wr;
	return 0;
}

static int hca_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	hca_rq_free(&to_srq(ib)->rq);
	return 0;
}

static int hca_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr,
			  enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct hca_srq *srq = to_srq(ib);
	unsigned long flags;

	if (mask & ~IB_SRQ_LIMIT)
		return -EOPNOTSUPP;
	if (attr->srq_limit > srq->rq.max_wr)
		return -EINVAL;
	spin_lock_irqsave(&srq->rq.lock, flags);
	srq->limit = attr->srq_limit;
	spin_unlock_irqrestore(&srq->rq.lock, flags);
	return 0;
}

static int hca_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct hca_srq *srq = to_srq(ib);

	attr->max_wr = srq->rq.max_wr;
	attr->max_sge = srq->rq.max_sge;
	attr->srq_limit = READ_ONCE(srq->limit);
	return 0;
}

static int hca_post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr,
			     const struct ib_recv_wr **bad)
{
	return hca_rq_post(&to_srq(ib)->rq, wr, bad);
}

const struct ib_device_ops hca_srq_ops = {
	.create_srq = hca_create_srq,
	.destroy_srq = hca_destroy_srq,
	.modify_srq = hca_modify_srq,
	.post_srq_recv = hca_post_srq_recv,
	.query_srq = hca_query_srq,

	INIT_RDMA_OBJ_SIZE(ib_srq, hca_srq, ib),
};
