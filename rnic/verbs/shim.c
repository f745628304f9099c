//go:build verbs && cgo && linux

#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

enum { CHUNK = 64 };

int gw_post_send(struct ibv_qp *qp, const struct gw_wr *in, int n, struct ibv_sge *sge, int *posted)
{
	struct ibv_send_wr wr[CHUNK], *bad;

	for (*posted = 0; *posted < n;) {
		int k = n - *posted < CHUNK ? n - *posted : CHUNK;

		for (int i = 0; i < k; i++) {
			const struct gw_wr *w = &in[*posted + i];

			memset(&wr[i], 0, sizeof(wr[i]));
			wr[i].wr_id = w->id;
			wr[i].sg_list = &sge[w->first];
			wr[i].num_sge = w->count;
			wr[i].opcode = w->opcode;
			wr[i].send_flags = w->flags;
			if (w->opcode == IBV_WR_SEND_WITH_INV) {
				wr[i].invalidate_rkey = w->stag;
				// libsiw sends what it finds in the place of an RDMA Write's rkey.
				wr[i].wr.rdma.rkey = w->stag;
			} else {
				wr[i].wr.rdma.remote_addr = w->remote_addr;
				wr[i].wr.rdma.rkey = w->stag;
			}
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
		}
		int rc = ibv_post_send(qp, wr, &bad);
		if (rc) {
			if (bad)
				*posted += bad - wr;
			return rc < 0 ? -rc : rc;
		}
		*posted += k;
	}
	return 0;
}

int gw_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, const struct gw_wr *in, int n, struct ibv_sge *sge, int *posted)
{
	struct ibv_recv_wr wr[CHUNK], *bad;

	for (*posted = 0; *posted < n;) {
		int k = n - *posted < CHUNK ? n - *posted : CHUNK;

		for (int i = 0; i < k; i++) {
			const struct gw_wr *w = &in[*posted + i];

			wr[i].wr_id = w->id;
			wr[i].sg_list = &sge[w->first];
			wr[i].num_sge = w->count;
			wr[i].next = i + 1 < k ? &wr[i + 1] : NULL;
		}
		int rc = srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad);
		if (rc) {
			if (bad)
				*posted += bad - wr;
			return rc < 0 ? -rc : rc;
		}
		*posted += k;
	}
	return 0;
}

int gw_poll(struct ibv_cq *cq, struct gw_wc *out, int n)
{
	struct ibv_wc wc[CHUNK];
	int got = ibv_poll_cq(cq, n < CHUNK ? n : CHUNK, wc);

	for (int i = 0; i < got; i++) {
		out[i].id = wc[i].wr_id;
		out[i].status = wc[i].status;
		out[i].opcode = wc[i].opcode;
		out[i].len = wc[i].byte_len;
		out[i].flags = wc[i].wc_flags;
		out[i].invalidated = wc[i].wc_flags & IBV_WC_WITH_INV ? wc[i].invalidated_rkey : 0;
		out[i].vendor = wc[i].vendor_err;
	}
	return got;
}

int gw_arm(struct ibv_cq *cq)
{
	return ibv_req_notify_cq(cq, 0);
}

int gw_cq_event(struct ibv_comp_channel *ch, uintptr_t *handle)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(ch, &cq, &context))
		return errno ? errno : EAGAIN;
	*handle = (uintptr_t)context;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

struct ibv_cq *gw_create_cq(struct ibv_context *ctx, int depth, uintptr_t handle, struct ibv_comp_channel *ch)
{
	return ibv_create_cq(ctx, depth, (void *)handle, ch, 0);
}

int gw_cm_event(struct rdma_event_channel *ch, struct gw_cm_event *out)
{
	struct rdma_cm_event *ev;

	if (rdma_get_cm_event(ch, &ev))
		return errno ? errno : EAGAIN;
	memset(out, 0, sizeof(*out));
	out->kind = ev->event;
	out->status = ev->status;
	out->id = ev->id;
	out->handle = (uintptr_t)(ev->event == RDMA_CM_EVENT_CONNECT_REQUEST ? ev->listen_id->context : ev->id->context);
	switch (ev->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		// What the peer can serve bounds what this side may have outstanding.
		out->ird = ev->param.conn.initiator_depth;
		out->ord = ev->param.conn.responder_resources;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		out->ird = ev->param.conn.responder_resources;
		out->ord = ev->param.conn.initiator_depth;
		break;
	default:
		break;
	}
	switch (ev->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		if (ev->param.conn.private_data) {
			out->private_len = ev->param.conn.private_data_len;
			memcpy(out->private_data, ev->param.conn.private_data, out->private_len);
		}
		break;
	default:
		break;
	}
	rdma_ack_cm_event(ev);
	return 0;
}

int gw_create_id(struct rdma_event_channel *ch, uintptr_t handle, struct rdma_cm_id **id)
{
	return rdma_create_id(ch, id, (void *)handle, RDMA_PS_TCP) ? errno : 0;
}

void gw_set_handle(struct rdma_cm_id *id, uintptr_t handle)
{
	id->context = (void *)handle;
}

int gw_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq, struct ibv_srq *srq,
	uint32_t sends, uint32_t recvs, uint32_t send_sge, uint32_t recv_sge, uint32_t inline_len)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = scq,
		.recv_cq = rcq,
		.srq = srq,
		.cap = {
			.max_send_wr = sends,
			.max_recv_wr = srq ? 0 : recvs,
			.max_send_sge = send_sge,
			.max_recv_sge = recv_sge,
			.max_inline_data = inline_len,
		},
		.qp_type = IBV_QPT_RC,
	};

	return rdma_create_qp(id, pd, &attr) ? errno : 0;
}

static struct rdma_conn_param conn_param(const void *data, uint8_t len, uint8_t ird, uint8_t ord)
{
	return (struct rdma_conn_param){
		.private_data = data,
		.private_data_len = len,
		.responder_resources = ird,
		.initiator_depth = ord,
		.retry_count = 7,
		// A message without a receive is an error, as on iWARP, and no reason to try for ever.
		.rnr_retry_count = 1,
	};
}

int gw_connect(struct rdma_cm_id *id, const void *data, uint8_t len, uint8_t ird, uint8_t ord)
{
	struct rdma_conn_param p = conn_param(data, len, ird, ord);

	return rdma_connect(id, &p) ? errno : 0;
}

int gw_accept(struct rdma_cm_id *id, const void *data, uint8_t len, uint8_t ird, uint8_t ord)
{
	struct rdma_conn_param p = conn_param(data, len, ird, ord);

	return rdma_accept(id, &p) ? errno : 0;
}

int gw_address(struct rdma_cm_id *id, int peer, void *to)
{
	struct sockaddr *a = peer ? rdma_get_peer_addr(id) : rdma_get_local_addr(id);
	int len = a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

	memcpy(to, a, len);
	return len;
}

int gw_fail_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

int gw_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? errno : 0;
}

// The descriptor is read here, and not by ibv_get_async_event, because libsiw's part of that prints to
// standard output. The acknowledgement is the library's own: destroying what the event is about waits for it.
int gw_async_event(struct ibv_context *ctx, uintptr_t *element, uint32_t *kind)
{
	struct ib_uverbs_async_event_desc d;
	ssize_t n = read(ctx->async_fd, &d, sizeof(d));

	if (n < 0)
		return errno;
	if (n != sizeof(d))
		return EIO;
	*element = d.element;
	*kind = d.event_type;
	struct ibv_async_event ev = {.event_type = d.event_type};
	switch (d.event_type) {
	case IBV_EVENT_CQ_ERR:
		ev.element.cq = (struct ibv_cq *)(uintptr_t)d.element;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		ev.element.srq = (struct ibv_srq *)(uintptr_t)d.element;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		ev.element.qp = (struct ibv_qp *)(uintptr_t)d.element;
		break;
	default:
		return 0; // of a port or of the device: nothing waits for it
	}
	ibv_ack_async_event(&ev);
	return 0;
}

int gw_probe_inline(struct ibv_context *ctx, int most)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = pd ? ibv_create_cq(ctx, 4, NULL, NULL, 0) : NULL;
	int found = cq ? 0 : -errno;

	for (int n = most; cq && n >= 16; n -= 16) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = n},
			.qp_type = IBV_QPT_RC,
		};
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);

		if (qp) {
			ibv_destroy_qp(qp);
			found = n;
			break;
		}
	}
	if (cq)
		ibv_destroy_cq(cq);
	if (pd)
		ibv_dealloc_pd(pd);
	return found;
}
