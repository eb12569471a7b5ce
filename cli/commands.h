/* One cmd_*.c per sub-command: parse, call, print. argv[0] is the command's name. `--help` prints
 * to stdout and returns STATUS_OK. */
#ifndef REGROUP_CLI_COMMANDS_H
#define REGROUP_CLI_COMMANDS_H

#include "core/status.h"

enum status cmd_inspect(int argc, char **argv) MUST_USE;
enum status cmd_convert(int argc, char **argv) MUST_USE;
enum status cmd_train(int argc, char **argv) MUST_USE;
enum status cmd_eval(int argc, char **argv) MUST_USE;
enum status cmd_generate(int argc, char **argv) MUST_USE;
enum status cmd_report(int argc, char **argv) MUST_USE;
enum status cmd_sweep(int argc, char **argv) MUST_USE;
enum status cmd_run(int argc, char **argv) MUST_USE;

#endif
