/* The temporary folder that a program of training tests works in, and what its runs are compared
 * by. Failures end the test. */
#ifndef REGROUP_TESTS_RUN_FOLDER_H
#define REGROUP_TESTS_RUN_FOLDER_H

#include "core/memory.h"

extern struct arena run_arena; /* from run_folder_open to run_folder_close */

/* A group's setup and teardown: a new empty folder, messages quiet; everything gone. */
int run_folder_open(void **state);
int run_folder_close(void **state);
/* The path of `name` in it, in run_arena. */
const char *in_folder(const char *name);
/* File `name` of folders a and b: there, not empty, and equal byte for byte. */
void same_file(const char *a, const char *b, const char *name);

#endif
