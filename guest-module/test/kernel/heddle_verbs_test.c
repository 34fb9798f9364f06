// SPDX-License-Identifier: GPL-2.0
/*
 * Tests what stock programs do not use: fast registration, invalidation by the
 * owner and by the peer, the limit of a shared receive queue, and draining. Two
 * queue pairs of the device heddle0 are connected to each other. Loading the
 * module runs the tests; it fails to load if one fails.
 */
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>

#define PAGES	5
#define OFFSET	100
#define LEN	(PAGES * PAGE_SIZE - 300)

struct side {
	struct ib_cq *cq;
	struct ib_qp *qp;
};

static struct ib_device *device;
static struct ib_pd *pd;
static struct side left, right;
static struct ib_srq *srq;
static u8 *source, *target;
static atomic_t limit_events, last_wqe_events, drained_events;

static void srq_event(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED)
		atomic_inc(&limit_events);
}

static void qp_event(struct ib_event *event, void *context)
{
	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		atomic_inc(&last_wqe_events);
	if (event->event == IB_EVENT_SQ_DRAINED)
		atomic_inc(&drained_events);
}

static int cq_wait(struct side *side, struct ib_wc *wc)
{
	int i, count;

	for (i = 0; i < 3000; i++) {
		count = ib_poll_cq(side->cq, 1, wc);
		if (count)
			return count < 0 ? count : 0;
		msleep(2);
	}
	return -ETIMEDOUT;
}

/* Posts one signaled work request; returns the status of its completion. */
static int post(struct side *side, struct ib_send_wr *wr)
{
	struct ib_wc wc;
	int err;

	wr->send_flags |= IB_SEND_SIGNALED;
	err = ib_post_send(side->qp, wr, NULL);
	if (!err)
		err = cq_wait(side, &wc);
	return err ? err : wc.status;
}

static int side_create(struct side *side, struct ib_srq *shared)
{
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.event_handler = qp_event,
		.srq = shared,
		.cap = {
			.max_send_wr = 8, .max_recv_wr = 8,
			.max_send_sge = 2, .max_recv_sge = 2,
		},
	};

	side->cq = ib_alloc_cq(device, NULL, 64, 0, IB_POLL_DIRECT);
	if (IS_ERR(side->cq))
		return PTR_ERR(side->cq);
	init.send_cq = side->cq;
	init.recv_cq = side->cq;
	side->qp = ib_create_qp(pd, &init);
	return PTR_ERR_OR_ZERO(side->qp);
}

static void side_destroy(struct side *side)
{
	if (!IS_ERR_OR_NULL(side->qp))
		ib_destroy_qp(side->qp);
	if (!IS_ERR_OR_NULL(side->cq))
		ib_free_cq(side->cq);
	memset(side, 0, sizeof(*side));
}

static int side_connect(struct side *side, const struct side *peer)
{
	struct ib_port_attr port;
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	int err;

	err = ib_query_port(device, 1, &port);
	if (err)
		return err;
	err = ib_modify_qp(side->qp, &attr, IB_QP_STATE | IB_QP_PORT |
			   IB_QP_PKEY_INDEX | IB_QP_ACCESS_FLAGS);
	if (err)
		return err;
	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = IB_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.max_dest_rd_atomic = 2;
	attr.min_rnr_timer = 12;
	attr.ah_attr.type = RDMA_AH_ATTR_TYPE_IB;
	rdma_ah_set_port_num(&attr.ah_attr, 1);
	rdma_ah_set_dlid(&attr.ah_attr, port.lid);
	err = ib_modify_qp(side->qp, &attr, IB_QP_STATE | IB_QP_AV |
			   IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	attr.qp_state = IB_QPS_RTS;
	attr.max_rd_atomic = 2;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	return ib_modify_qp(side->qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN |
			    IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

static int post_recv(struct side *side)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)target, .length = PAGE_SIZE,
		.lkey = pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(side->qp, &wr, NULL);
}

static int rdma(struct side *side, enum ib_wr_opcode opcode, u8 *local,
		struct ib_mr *mr, u32 len)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)local, .length = len,
		.lkey = pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = mr->iova,
		.rkey = mr->rkey,
	};

	return post(side, &wr.wr);
}

static int reg(struct ib_mr *mr)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR,
		.mr = mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			  IB_ACCESS_REMOTE_READ,
	};

	ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
	wr.key = mr->rkey;
	return post(&right, &wr.wr);
}

static int local_invalidate(struct ib_mr *mr)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = mr->rkey,
	};

	return post(&right, &wr);
}

/* The peer invalidates the region with a SEND. */
static int remote_invalidate(struct ib_mr *mr)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)source, .length = 10,
		.lkey = pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND_WITH_INV, .sg_list = &sge, .num_sge = 1,
		.ex.invalidate_rkey = mr->rkey,
	};
	struct ib_wc wc;
	int err;

	err = post_recv(&right);
	if (!err)
		err = post(&left, &wr);
	if (!err)
		err = cq_wait(&right, &wc);
	if (err)
		return err;
	if (wc.status || wc.byte_len != 10 || !(wc.wc_flags & IB_WC_WITH_INVALIDATE) ||
	    wc.ex.invalidate_rkey != mr->rkey)
		return -EINVAL;
	return 0;
}

#define EXPECT(call, wanted)							\
	do {									\
		int got = (call);						\
										\
		if (got != (wanted)) {						\
			pr_err("heddle_verbs_test: line %d: %s is %d, not %d\n",	\
			       __LINE__, #call, got, (int)(wanted));		\
			return -EINVAL;						\
		}								\
	} while (0)

static int fast_registration(struct ib_mr *mr)
{
	struct scatterlist sg[PAGES];
	unsigned int i;
	int status;

	sg_init_table(sg, PAGES);
	for (i = 0; i < PAGES; i++) {
		u32 skip = i ? 0 : OFFSET;
		u32 cut = i == PAGES - 1 ? 200 : 0;

		/* In reverse, so that pages do not follow each other. */
		sg_set_buf(&sg[i], target + (PAGES - 1 - i) * PAGE_SIZE + skip,
			   PAGE_SIZE - skip - cut);
	}
	for (i = 0; i < PAGES * PAGE_SIZE; i++)
		source[i] = i * 7 + i / 256;
	EXPECT(ib_dma_map_sg(device, sg, PAGES, DMA_BIDIRECTIONAL), PAGES);
	EXPECT(ib_map_mr_sg(mr, sg, PAGES, NULL, PAGE_SIZE), PAGES);
	EXPECT(mr->length, LEN);

	EXPECT(reg(mr), IB_WC_SUCCESS);
	EXPECT(rdma(&left, IB_WR_RDMA_WRITE, source, mr, LEN), IB_WC_SUCCESS);
	EXPECT(memcmp(target + (PAGES - 1) * PAGE_SIZE + OFFSET, source,
		      PAGE_SIZE - OFFSET), 0);
	EXPECT(memcmp(target + (PAGES - 2) * PAGE_SIZE,
		      source + PAGE_SIZE - OFFSET, PAGE_SIZE), 0);
	memset(source, 0, PAGES * PAGE_SIZE);
	EXPECT(rdma(&left, IB_WR_RDMA_READ, source, mr, LEN), IB_WC_SUCCESS);
	EXPECT(memcmp(target + (PAGES - 1) * PAGE_SIZE + OFFSET, source,
		      PAGE_SIZE - OFFSET), 0);

	/* Registered again with another key, after each kind of invalidation. */
	EXPECT(local_invalidate(mr), IB_WC_SUCCESS);
	EXPECT(reg(mr), IB_WC_SUCCESS);
	EXPECT(remote_invalidate(mr), 0);
	EXPECT(reg(mr), IB_WC_SUCCESS);
	EXPECT(rdma(&left, IB_WR_RDMA_WRITE, source, mr, 64), IB_WC_SUCCESS);

	/*
	 * Without a registration it is refused, and the connection ends. If the
	 * NAK is lost, the peer has failed when it is asked for it again.
	 */
	EXPECT(remote_invalidate(mr), 0);
	status = rdma(&left, IB_WR_RDMA_WRITE, source, mr, 64);
	if (status != IB_WC_RETRY_EXC_ERR)
		EXPECT(status, IB_WC_REM_ACCESS_ERR);
	ib_drain_qp(left.qp);
	ib_drain_qp(right.qp);
	ib_dma_unmap_sg(device, sg, PAGES, DMA_BIDIRECTIONAL);
	return 0;
}

static int post_srq_recv(void)
{
	struct ib_sge sge = {
		.addr = (uintptr_t)target, .length = PAGE_SIZE,
		.lkey = pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	return ib_post_srq_recv(srq, &wr, NULL);
}

static int send(struct ib_send_wr *wr)
{
	wr->opcode = IB_WR_SEND;
	return post(&left, wr);
}

static int events_wait(atomic_t *events, int wanted)
{
	int i;

	for (i = 0; i < 500 && atomic_read(events) != wanted; i++)
		msleep(2);
	return atomic_read(events);
}

static int shared_receive_queue(void)
{
	struct ib_srq_attr limit = { .srq_limit = 3 };
	struct ib_qp_attr error = { .qp_state = IB_QPS_ERR };
	struct ib_send_wr wr = {};
	int i;

	for (i = 0; i < 4; i++)
		EXPECT(post_srq_recv(), 0);
	EXPECT(ib_modify_srq(srq, &limit, IB_SRQ_LIMIT), 0);
	EXPECT(send(&wr), IB_WC_SUCCESS);
	EXPECT(atomic_read(&limit_events), 0);
	/* Two are left, less than three. It is reported once. */
	EXPECT(send(&wr), IB_WC_SUCCESS);
	EXPECT(events_wait(&limit_events, 1), 1);
	EXPECT(send(&wr), IB_WC_SUCCESS);
	EXPECT(ib_modify_qp(right.qp, &error, IB_QP_STATE), 0);
	EXPECT(events_wait(&last_wqe_events, 1), 1);
	EXPECT(atomic_read(&limit_events), 1);
	return 0;
}

static int drained_state(void)
{
	struct ib_qp_attr drain = {
		.qp_state = IB_QPS_SQD,
		.en_sqd_async_notify = 1,
	};
	struct ib_qp_attr go_on = { .qp_state = IB_QPS_RTS };
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED,
	};
	struct ib_wc wc;

	EXPECT(post_srq_recv(), 0);
	EXPECT(ib_modify_qp(left.qp, &drain, IB_QP_STATE |
			    IB_QP_EN_SQD_ASYNC_NOTIFY), 0);
	EXPECT(events_wait(&drained_events, 1), 1);
	/* What is posted now waits. */
	EXPECT(ib_post_send(left.qp, &wr, NULL), 0);
	msleep(100);
	EXPECT(ib_poll_cq(left.cq, 1, &wc), 0);
	EXPECT(ib_modify_qp(left.qp, &go_on, IB_QP_STATE), 0);
	EXPECT(cq_wait(&left, &wc), 0);
	EXPECT(wc.status, IB_WC_SUCCESS);
	return 0;
}

/* Connects two new queue pairs; the right one may have a shared queue. */
static int connect_sides(struct ib_srq *shared)
{
	int err;

	side_destroy(&left);
	side_destroy(&right);
	err = side_create(&left, NULL);
	if (!err)
		err = side_create(&right, shared);
	if (!err)
		err = side_connect(&left, &right);
	if (!err)
		err = side_connect(&right, &left);
	return err;
}

static int run_all(struct ib_mr *mr)
{
	int err;

	err = connect_sides(NULL);
	if (!err)
		err = fast_registration(mr);
	if (!err)
		err = connect_sides(srq);
	if (!err)
		err = drained_state();
	if (!err)
		err = shared_receive_queue();
	return err;
}

static int __init verbs_test_init(void)
{
	struct ib_srq_init_attr srq_init = {
		.event_handler = srq_event,
		.attr = { .max_wr = 8, .max_sge = 1 },
	};
	struct ib_mr *mr = NULL;
	int err = -ENOMEM;

	device = ib_device_get_by_name("heddle0", RDMA_DRIVER_UNKNOWN);
	if (!device)
		return -ENODEV;
	pd = ib_alloc_pd(device, 0);
	if (IS_ERR(pd)) {
		err = PTR_ERR(pd);
		pd = NULL;
		goto out;
	}
	source = kzalloc(PAGES * PAGE_SIZE, GFP_KERNEL);
	target = kzalloc(PAGES * PAGE_SIZE, GFP_KERNEL);
	mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, PAGES);
	if (!source || !target || IS_ERR(mr))
		goto out;
	srq = ib_create_srq(pd, &srq_init);
	if (IS_ERR(srq))
		goto out;
	err = run_all(mr);
	pr_info("heddle_verbs_test: %s\n", err ? "failed" : "passed");
out:
	side_destroy(&left);
	side_destroy(&right);
	if (!IS_ERR_OR_NULL(srq))
		ib_destroy_srq(srq);
	if (!IS_ERR_OR_NULL(mr))
		ib_dereg_mr(mr);
	kfree(source);
	kfree(target);
	if (pd)
		ib_dealloc_pd(pd);
	ib_device_put(device);
	return err;
}

static void __exit verbs_test_exit(void)
{
}

module_init(verbs_test_init);
module_exit(verbs_test_exit);
MODULE_DESCRIPTION("Test of fast registration on heddle0");
MODULE_LICENSE("GPL");
