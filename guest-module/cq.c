// SPDX-License-Identifier: GPL-2.0
/* Completion queues. */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/version.h>

#include "hca.h"

/* A power of 2, so that indices can wrap. */
static u32 ring_size(int cqe)
{
	return roundup_pow_of_two(cqe);
}

static int cq_create(struct hca_cq *cq, const struct ib_cq_init_attr *attr)
{
	if (attr->flags)
		return -EOPNOTSUPP;
	if (attr->cqe < 1 || attr->cqe > HCA_CQE_MAX)
		return -EINVAL;
	spin_lock_init(&cq->lock);
	cq->size = ring_size(attr->cqe);
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL_ACCOUNT);
	if (!cq->ring)
		return -ENOMEM;
	cq->ib.cqe = cq->size;
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static int hca_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
			 struct uverbs_attr_bundle *attrs)
#else
static int hca_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
			 struct ib_udata *udata)
#endif
{
	return cq_create(to_cq(ib), attr);
}

static int hca_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct hca_cq *cq = to_cq(ib);

	kvfree(cq->ring);
	return 0;
}

static int hca_resize_cq(struct ib_cq *ib, int cqe, struct ib_udata *udata)
{
	struct hca_cq *cq = to_cq(ib);
	struct ib_wc *ring, *old;
	unsigned long flags;
	u32 size, used, i;

	if (cqe < 1 || cqe > HCA_CQE_MAX)
		return -EINVAL;
	size = ring_size(cqe);
	ring = kvcalloc(size, sizeof(*ring), GFP_KERNEL_ACCOUNT);
	if (!ring)
		return -ENOMEM;
	spin_lock_irqsave(&cq->lock, flags);
	used = cq->head - cq->tail;
	if (used > size) {
		spin_unlock_irqrestore(&cq->lock, flags);
		kvfree(ring);
		return -EBUSY;
	}
	for (i = 0; i < used; i++)
		ring[i] = cq->ring[(cq->tail + i) & (cq->size - 1)];
	old = cq->ring;
	cq->ring = ring;
	cq->size = size;
	cq->tail = 0;
	cq->head = used;
	ib->cqe = size;
	spin_unlock_irqrestore(&cq->lock, flags);
	kvfree(old);
	return 0;
}

static void report_overrun(struct hca_cq *cq)
{
	struct ib_event event = {
		.device = cq->ib.device,
		.event = IB_EVENT_CQ_ERR,
		.element.cq = &cq->ib,
	};

	ibdev_warn(cq->ib.device, "a completion queue of %u entries is full\n",
		   cq->size);
	if (cq->ib.event_handler)
		cq->ib.event_handler(&event, cq->ib.cq_context);
}

/*
 * Adds a completion. The engine calls it. A queue that is full stays in error:
 * further completions are lost.
 */
void hca_complete(struct hca_cq *cq, const struct ib_wc *wc, bool solicited)
{
	bool call = false, overrun = false;
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->overrun) {
		;
	} else if (cq->head - cq->tail >= cq->size) {
		cq->overrun = true;
		overrun = true;
	} else {
		cq->ring[cq->head++ & (cq->size - 1)] = *wc;
		call = cq->armed == IB_CQ_NEXT_COMP ||
		       (cq->armed == IB_CQ_SOLICITED &&
			(solicited || wc->status != IB_WC_SUCCESS));
		if (call)
			cq->armed = 0;
	}
	spin_unlock_irqrestore(&cq->lock, flags);

	/* Handlers expect soft interrupts that they raise to run soon. */
	local_bh_disable();
	if (call && cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
	if (overrun)
		report_overrun(cq);
	local_bh_enable();
}

/* Removes the completions of a queue pair that is destroyed or reset. */
void hca_cq_clean(struct hca_cq *cq, const struct hca_qp *qp)
{
	unsigned long flags;
	u32 from, to;

	spin_lock_irqsave(&cq->lock, flags);
	for (from = to = cq->tail; from != cq->head; from++) {
		struct ib_wc *wc = &cq->ring[from & (cq->size - 1)];

		if (wc->qp != &qp->ib)
			cq->ring[to++ & (cq->size - 1)] = *wc;
	}
	cq->head = to;
	spin_unlock_irqrestore(&cq->lock, flags);
}

static int hca_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	struct hca_cq *cq = to_cq(ib);
	unsigned long flags;
	int i;

	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < count && cq->tail != cq->head; i++)
		wc[i] = cq->ring[cq->tail++ & (cq->size - 1)];
	spin_unlock_irqrestore(&cq->lock, flags);
	return i;
}

static int hca_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags notify)
{
	struct hca_cq *cq = to_cq(ib);
	unsigned long flags;
	int missed;

	spin_lock_irqsave(&cq->lock, flags);
	/* A weaker request does not replace a stronger one. */
	if (cq->armed != IB_CQ_NEXT_COMP)
		cq->armed = notify & IB_CQ_SOLICITED_MASK;
	missed = (notify & IB_CQ_REPORT_MISSED_EVENTS) && cq->head != cq->tail;
	spin_unlock_irqrestore(&cq->lock, flags);
	return missed;
}

const struct ib_device_ops hca_cq_ops = {
	.create_cq = hca_create_cq,
	.destroy_cq = hca_destroy_cq,
	.poll_cq = hca_poll_cq,
	.req_notify_cq = hca_req_notify_cq,
	.resize_cq = hca_resize_cq,

	INIT_RDMA_OBJ_SIZE(ib_cq, hca_cq, ib),
};
