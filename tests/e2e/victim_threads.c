/* SPDX-License-Identifier: MIT
 *
 * victim_threads: eight threads allocate, fill on a stream of their own, check
 * and free, every third block in the thread beside them.
 */
#include <pthread.h>

#include "victim_link.h"

#define N_THREADS 8
#define N_ROUNDS 300
#define N_BLOCKS 6

struct mailbox {
	pthread_mutex_t lock;
	CUdeviceptr blocks[N_ROUNDS];
	int n_blocks;
};

static struct mailbox mailboxes[N_THREADS];
static uint64_t hashes[N_THREADS];
static CUcontext ctx;

static void put(struct mailbox *box, CUdeviceptr p)
{
	pthread_mutex_lock(&box->lock);
	box->blocks[box->n_blocks++] = p;
	pthread_mutex_unlock(&box->lock);
}

static void empty(struct mailbox *box)
{
	CUdeviceptr blocks[N_ROUNDS];
	int n;

	pthread_mutex_lock(&box->lock);
	n = box->n_blocks;
	memcpy(blocks, box->blocks, (size_t)n * sizeof(blocks[0]));
	box->n_blocks = 0;
	pthread_mutex_unlock(&box->lock);
	while (n--)
		victim_free(blocks[n]);
}

static void *work(void *arg)
{
	int me = (int)(intptr_t)arg, byte;
	CUdeviceptr blocks[N_BLOCKS] = {0};
	size_t sizes[N_BLOCKS];
	uint64_t random = (uint64_t)me + 100, hash = HASH_START;
	unsigned char *host = malloc(MiB);
	CUstream stream;

	CHECK(host);
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < N_ROUNDS; i++) {
		int k = i % N_BLOCKS;

		byte = me * N_BLOCKS + k;
		if (blocks[k]) {
			TRY(cuMemcpyDtoHAsync(host, blocks[k], sizes[k],
					      stream));
			TRY(cuStreamSynchronize(stream));
			for (size_t j = 0; j < sizes[k]; j++)
				CHECK(host[j] == (unsigned char)byte);
			hash = victim_hash(hash, host, sizes[k]);
			if (i % 3 == 0)
				put(&mailboxes[(me + 1) % N_THREADS],
				    blocks[k]);
			else
				victim_free(blocks[k]);
		}
		sizes[k] = victim_size(&random, 18);
		blocks[k] = victim_alloc(sizes[k]);
		TRY(cuMemsetD8Async(blocks[k], (unsigned char)byte, sizes[k],
				    stream));
		empty(&mailboxes[me]);
	}
	TRY(cuStreamSynchronize(stream));
	for (int k = 0; k < N_BLOCKS; k++)
		victim_free(blocks[k]);
	TRY(cuStreamDestroy(stream));
	hashes[me] = hash;
	free(host);
	return NULL;
}

int main(void)
{
	pthread_t threads[N_THREADS];

	ctx = victim_start(0);
	for (int i = 0; i < N_THREADS; i++)
		pthread_mutex_init(&mailboxes[i].lock, NULL);
	for (int i = 0; i < N_THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work,
				     (void *)(intptr_t)i) == 0);
	for (int i = 0; i < N_THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < N_THREADS; i++) {
		empty(&mailboxes[i]);
		printf("thread %d %016" PRIx64 "\n", i, hashes[i]);
	}
	return 0;
}
