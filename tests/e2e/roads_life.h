/* SPDX-License-Identifier: MIT
 *
 * roads_life: what roads.c goes of roads_life.c. Each prints, and ends the
 * process where CUDA fails.
 */
#ifndef ROADS_LIFE_H
#define ROADS_LIFE_H

void road_small_stack(const char *arg);
void road_threads(const char *arg);
void road_close(const char *arg);
void road_brought(const char *library);
void road_fork(const char *arg);
void road_fork_early(const char *arg);
void road_profiled(const char *arg);

#endif
