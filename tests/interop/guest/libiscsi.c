/*
 * Lets programs that use libiscsi 1.19 over iSER make more than one connection in a process. Loaded with LD_PRELOAD, it evens out
 * five things that the library leaves undone; what goes over the wire is the library's own.
 *
 *   - a connection's memory comes with what was in it before: malloc returns zeros
 *   - a context is destroyed with its connection open: iscsi_disconnect comes first
 *   - the thread that serves a connection's events is cancelled, not waited for, and goes on with memory that is somebody else's:
 *     it is given time to end by itself, which it does once it has heard of the end of the connection
 *   - a poll that times out, after a second, is taken for an error: polls go on for a minute
 *   - Data-Out PDUs, which nothing answers, use its descriptors up: unsolicited data goes no further than the command
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

void *__libc_calloc(size_t n, size_t size);

void *malloc(size_t size)
{
	return __libc_calloc(1, size);
}

int iscsi_destroy_context(void *context)
{
	int (*disconnect)(void *) = dlsym(RTLD_NEXT, "iscsi_disconnect");
	int (*destroy)(void *) = dlsym(RTLD_NEXT, "iscsi_destroy_context");

	disconnect(context);
	return destroy(context);
}

int iscsi_full_connect_sync(void *context, const char *portal, int lun)
{
	int (*initial_r2t)(void *, int) = dlsym(RTLD_NEXT, "iscsi_set_initial_r2t");
	int (*connect)(void *, const char *, int) = dlsym(RTLD_NEXT, "iscsi_full_connect_sync");

	initial_r2t(context, 1);
	return connect(context, portal, lun);
}

int pthread_cancel(pthread_t thread)
{
	int (*cancel)(pthread_t) = dlsym(RTLD_NEXT, "pthread_cancel");
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 5;
	if (pthread_timedjoin_np(thread, NULL, &limit) == 0)
		return 0;
	int err = cancel(thread);
	pthread_join(thread, NULL);
	return err;
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	int (*wait)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");

	return wait(fds, n, timeout == 1000 ? 60000 : timeout);
}
