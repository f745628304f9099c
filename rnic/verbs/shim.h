// The calls of rnic/verbs into libibverbs and librdmacm. The verbs of the data path are inline
// functions in their header, so that they need a function here anyway; each takes a whole chain or batch, in
// flat arrays without pointers, so that Go memory can be lent to it.

#ifndef GOIWARP_SHIM_H
#define GOIWARP_SHIM_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

// A work request. Its scatter/gather elements are sge[first .. first+count).
struct gw_wr {
	uint64_t id;
	uint64_t remote_addr;
	uint32_t stag; // the remote region's, or the one to invalidate
	uint32_t opcode;
	uint32_t flags;
	uint32_t first;
	uint32_t count;
	uint32_t reserved;
};

// A completion.
struct gw_wc {
	uint64_t id;
	uint32_t status;
	uint32_t opcode;
	uint32_t len;
	uint32_t flags;
	uint32_t invalidated;
	uint32_t vendor;
};

// An event of the connection manager, copied and acknowledged.
struct gw_cm_event {
	uintptr_t handle;          // of the endpoint, or of the listener for a request
	struct rdma_cm_id *id;     // of a request: the new one
	int kind;
	int status;
	uint8_t ird, ord;          // the peer's, as far as the event tells
	uint8_t private_len;
	uint8_t private_data[256];
};

// gw_post_send and gw_post_recv return 0 or an errno; *posted says how many were taken.
int gw_post_send(struct ibv_qp *qp, const struct gw_wr *wr, int n, struct ibv_sge *sge, int *posted);
int gw_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, const struct gw_wr *wr, int n, struct ibv_sge *sge, int *posted);
// gw_poll returns the number of completions, or -1.
int gw_poll(struct ibv_cq *cq, struct gw_wc *wc, int n);
int gw_arm(struct ibv_cq *cq);
// gw_cq_event takes the next event off the channel and says whose it is; an errno if there is none.
int gw_cq_event(struct ibv_comp_channel *ch, uintptr_t *handle);
struct ibv_cq *gw_create_cq(struct ibv_context *ctx, int depth, uintptr_t handle, struct ibv_comp_channel *ch);

int gw_cm_event(struct rdma_event_channel *ch, struct gw_cm_event *ev);
int gw_create_id(struct rdma_event_channel *ch, uintptr_t handle, struct rdma_cm_id **id);
void gw_set_handle(struct rdma_cm_id *id, uintptr_t handle);
int gw_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq, struct ibv_srq *srq,
	uint32_t sends, uint32_t recvs, uint32_t send_sge, uint32_t recv_sge, uint32_t inline_len);
int gw_connect(struct rdma_cm_id *id, const void *data, uint8_t len, uint8_t ird, uint8_t ord);
int gw_accept(struct rdma_cm_id *id, const void *data, uint8_t len, uint8_t ird, uint8_t ord);
// gw_address copies the local or the peer's address, and returns its length.
int gw_address(struct rdma_cm_id *id, int peer, void *to);
int gw_fail_qp(struct ibv_qp *qp);
int gw_nonblocking(int fd);

// gw_async_event takes the next asynchronous event; an errno if there is none.
int gw_async_event(struct ibv_context *ctx, uintptr_t *element, uint32_t *kind);
// gw_probe_inline is the largest inline payload, up to most, that a queue pair may have; negative on error.
int gw_probe_inline(struct ibv_context *ctx, int most);

#endif
