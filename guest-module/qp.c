// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: creation, states, and turns of the engine. */
#include <linux/log2.h>
#include <linux/mm.h>

#include "hca.h"

/* ---- the error state, and turns */

void hca_qp_event(struct hca_qp *qp, enum ib_event_type type)
{
	struct ib_event event = {
		.device = qp->ib.device,
		.event = type,
		.element.qp = &qp->ib,
	};

	if (qp->ib.event_handler)
		qp->ib.event_handler(&event, qp->ib.qp_context);
}

static void flush_sends(struct hca_qp *qp)
{
	while (qp->sq.tail != hca_sends_end(qp))
		hca_send_done(qp, IB_WC_WR_FLUSH_ERR);
}

static void flush(struct hca_qp *qp)
{
	struct ib_wc flushed = {
		.status = IB_WC_WR_FLUSH_ERR,
		.opcode = IB_WC_RECV,
	};
	struct ib_wc wc;
	struct hca_recv recv;

	flush_sends(qp);
	if (qp->resp.have_recv) {
		qp->resp.have_recv = false;
		wc = flushed;
		hca_recv_done(qp, &qp->resp.recv, &wc, true);
	}
	if (!qp->srq) {
		while (!hca_recv_take(qp, &recv, 0)) {
			wc = flushed;
			hca_recv_done(qp, &recv, &wc, true);
		}
	} else if (!qp->resp.last_wqe_told) {
		/* Receives of a shared queue stay there. */
		qp->resp.last_wqe_told = true;
		hca_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
	}
}

/* Moves a queue pair to the error state and flushes its queues. */
void hca_qp_fail(struct hca_qp *qp)
{
	WRITE_ONCE(qp->state, IB_QPS_ERR);
	qp->req.timing = false;
	flush(qp);
}

/* A turn. Returns whether there is more to do at once. */
bool hca_qp_run(struct hca_qp *qp)
{
	switch (qp->state) {
	case IB_QPS_ERR:
		flush(qp);
		return false;
	case IB_QPS_SQE:
		flush_sends(qp);
		return false;
	case IB_QPS_RTR:
	case IB_QPS_RTS:
	case IB_QPS_SQD:
		return qp->ib.qp_type == IB_QPT_RC ? hca_rc_run(qp) :
						     hca_ud_run(qp);
	default:
		return false;
	}
}

static void timer_expired(struct work_struct *work)
{
	hca_qp_wake(container_of(to_delayed_work(work), struct hca_qp, timer));
}

/* ---- creation */

static bool type_supported(enum ib_qp_type type)
{
	return type == IB_QPT_SMI || type == IB_QPT_GSI || type == IB_QPT_UD ||
	       type == IB_QPT_RC;
}

static int sq_init(struct hca_sq *sq, struct ib_qp_cap *cap)
{
	u32 bytes;

	if (cap->max_send_wr > HCA_WR_MAX || cap->max_send_sge > HCA_SGE_MAX ||
	    cap->max_inline_data > HCA_INLINE_MAX)
		return -EINVAL;
	spin_lock_init(&sq->lock);
	bytes = max_t(u32, cap->max_send_sge * sizeof(struct ib_sge),
		      cap->max_inline_data);
	bytes = round_up(bytes, sizeof(struct ib_sge));
	sq->size = roundup_pow_of_two(max(cap->max_send_wr, 1u));
	sq->stride = sizeof(struct hca_send) + bytes;
	sq->slots = kvcalloc(sq->size, sq->stride, GFP_KERNEL_ACCOUNT);
	if (!sq->slots)
		return -ENOMEM;
	cap->max_send_wr = sq->size;
	cap->max_inline_data = bytes;
	return 0;
}

static int assign_number(struct hca_dev *dev, struct hca_qp *qp,
			 enum ib_qp_type type)
{
	struct xa_limit range = {
		.min = max(dev->port.first_qp, 2u),
		.max = dev->port.first_qp + dev->port.qp_count - 1,
	};
	u32 number = type == IB_QPT_GSI;
	int err;

	if (type == IB_QPT_SMI || type == IB_QPT_GSI)
		err = xa_insert(&dev->qps, number, qp, GFP_NOIO);
	else
		err = xa_alloc_cyclic(&dev->qps, &number, qp, range,
				      &dev->next_qpn, GFP_NOIO);
	qp->ib.qp_num = number;
	return min(err, 0);
}

static int hca_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr,
			 struct ib_udata *udata)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_qp *qp = to_qp(ib);
	int err;

	if (attr->create_flags & ~IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK ||
	    !type_supported(attr->qp_type))
		return -EOPNOTSUPP;
	qp->state = IB_QPS_RESET;
	qp->user = udata;
	qp->signal_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->no_loopback = attr->create_flags & IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK;
	qp->srq = attr->srq ? to_srq(attr->srq) : NULL;
	INIT_LIST_HEAD(&qp->ready);
	INIT_DELAYED_WORK(&qp->timer, timer_expired);
	err = sq_init(&qp->sq, &attr->cap);
	if (!err)
		err = hca_rq_init(&qp->rq, qp->srq ? 0 : attr->cap.max_recv_wr,
				  attr->cap.max_recv_sge);
	if (err)
		goto fail;
	attr->cap.max_recv_wr = qp->rq.max_wr;
	qp->cap = attr->cap;
	mutex_lock(&dev->engine);
	err = assign_number(dev, qp, attr->qp_type);
	mutex_unlock(&dev->engine);
	if (err)
		goto fail;
	return 0;
fail:
	kvfree(qp->sq.slots);
	hca_rq_free(&qp->rq);
	return err;
}

static void clean_cqs(struct hca_qp *qp)
{
	if (qp->ib.send_cq)
		hca_cq_clean(to_cq(qp->ib.send_cq), qp);
	if (qp->ib.recv_cq && qp->ib.recv_cq != qp->ib.send_cq)
		hca_cq_clean(to_cq(qp->ib.recv_cq), qp);
}

static int hca_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_qp *qp = to_qp(ib);

	mutex_lock(&dev->engine);
	xa_erase(&dev->qps, ib->qp_num);
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	hca_qp_forget(qp);
	clean_cqs(qp);
	mutex_unlock(&dev->engine);
	/* The engine has no way to it any more that could start the timer. */
	cancel_delayed_work_sync(&qp->timer);
	kvfree(qp->sq.slots);
	hca_rq_free(&qp->rq);
	return 0;
}

/* ---- states */

static void reset(struct hca_qp *qp)
{
	unsigned long flags;

	clean_cqs(qp);
	spin_lock_irqsave(&qp->sq.lock, flags);
	qp->sq.head = 0;
	qp->sq.tail = 0;
	spin_unlock_irqrestore(&qp->sq.lock, flags);
	hca_rq_reset(&qp->rq);
	memset(&qp->req, 0, sizeof(qp->req));
	memset(&qp->resp, 0, sizeof(qp->resp));
}

static bool attr_valid(struct hca_dev *dev, const struct ib_qp_attr *attr, int mask)
{
	if (mask & (IB_QP_ALT_PATH | IB_QP_RATE_LIMIT))
		return false;
	if ((mask & IB_QP_PKEY_INDEX) && attr->pkey_index >= WIRE_PKEYS_MAX)
		return false;
	if ((mask & IB_QP_PORT) && attr->port_num != HCA_PORT)
		return false;
	if ((mask & IB_QP_AV) && !hca_av_valid(dev, &attr->ah_attr))
		return false;
	if ((mask & IB_QP_PATH_MTU) &&
	    (attr->path_mtu < IB_MTU_256 || attr->path_mtu > IB_MTU_4096))
		return false;
	if ((mask & IB_QP_TIMEOUT) && attr->timeout > 31)
		return false;
	if ((mask & IB_QP_RETRY_CNT) && attr->retry_cnt > 7)
		return false;
	if ((mask & IB_QP_RNR_RETRY) && attr->rnr_retry > 7)
		return false;
	if ((mask & IB_QP_MIN_RNR_TIMER) && attr->min_rnr_timer > 31)
		return false;
	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) &&
	    attr->max_rd_atomic > HCA_RD_ATOMIC_MAX)
		return false;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) &&
	    attr->max_dest_rd_atomic > HCA_RD_ATOMIC_MAX)
		return false;
	return true;
}

static void store_attr(struct hca_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	if (mask & IB_QP_PKEY_INDEX)
		qp->attr.pkey_index = attr->pkey_index;
	if (mask & IB_QP_PORT)
		qp->attr.port_num = attr->port_num;
	if (mask & IB_QP_QKEY)
		qp->attr.qkey = attr->qkey;
	if (mask & IB_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = attr->qp_access_flags;
	if (mask & IB_QP_AV)
		hca_av_read(&qp->av, &attr->ah_attr);
	if (mask & IB_QP_PATH_MTU)
		qp->attr.path_mtu = attr->path_mtu;
	if (mask & IB_QP_DEST_QPN)
		qp->attr.dest_qp_num = attr->dest_qp_num & PACKET_QPN_MASK;
	if (mask & IB_QP_RQ_PSN) {
		qp->attr.rq_psn = attr->rq_psn & PACKET_PSN_MASK;
		qp->resp.epsn = qp->attr.rq_psn;
	}
	if (mask & IB_QP_SQ_PSN) {
		qp->attr.sq_psn = attr->sq_psn & PACKET_PSN_MASK;
		qp->req.next_psn = qp->attr.sq_psn;
	}
	if (mask & IB_QP_TIMEOUT)
		qp->attr.timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		qp->attr.retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		qp->attr.rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_MIN_RNR_TIMER)
		qp->attr.min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		qp->attr.max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		qp->attr.en_sqd_async_notify = attr->en_sqd_async_notify;
}

static void change_state(struct hca_qp *qp, enum ib_qp_state from,
			 enum ib_qp_state to)
{
	if (to == IB_QPS_RESET)
		reset(qp);
	if (from == IB_QPS_RTR && to == IB_QPS_RTS && qp->ib.qp_type == IB_QPT_RC)
		hca_rc_start_sending(qp);
	if (to == IB_QPS_SQD && from != IB_QPS_SQD)
		qp->req.drain = qp->attr.en_sqd_async_notify;
	WRITE_ONCE(qp->state, to);
}

static int hca_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			 struct ib_udata *udata)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_qp *qp = to_qp(ib);
	enum ib_qp_state from, to;
	int err = -EINVAL;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	mutex_lock(&dev->engine);
	from = qp->state;
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	if ((mask & IB_QP_CUR_STATE) && attr->cur_qp_state != from)
		goto out;
	if (!ib_modify_qp_is_ok(from, to, ib->qp_type, mask) ||
	    !attr_valid(dev, attr, mask))
		goto out;
	store_attr(qp, attr, mask);
	change_state(qp, from, to);
	err = 0;
out:
	mutex_unlock(&dev->engine);
	if (!err)
		hca_qp_wake(qp);
	return err;
}

static int hca_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			struct ib_qp_init_attr *init)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_qp *qp = to_qp(ib);

	mutex_lock(&dev->engine);
	*attr = qp->attr;
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	attr->cap = qp->cap;
	attr->path_mig_state = IB_MIG_MIGRATED;
	if (ib->qp_type == IB_QPT_RC) {
		attr->sq_psn = qp->req.next_psn;
		attr->rq_psn = qp->resp.epsn;
		attr->sq_draining = qp->state == IB_QPS_SQD &&
				    qp->req.una != qp->req.sent_psn;
		hca_av_write(&qp->av, &attr->ah_attr);
	}
	mutex_unlock(&dev->engine);
	init->cap = qp->cap;
	init->qp_type = ib->qp_type;
	init->send_cq = ib->send_cq;
	init->recv_cq = ib->recv_cq;
	init->srq = ib->srq;
	init->sq_sig_type = qp->signal_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR;
	return 0;
}

const struct ib_device_ops hca_qp_ops = {
	.create_qp = hca_create_qp,
	.destroy_qp = hca_destroy_qp,
	.modify_qp = hca_modify_qp,
	.query_qp = hca_query_qp,

	INIT_RDMA_OBJ_SIZE(ib_qp, hca_qp, ib),
};
