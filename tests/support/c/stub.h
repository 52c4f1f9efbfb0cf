/* What every stub driver has: calls that do what the environment says.
 *
 * STUB_<call> is a return code, or one of: crash, abort, exit, hang, noise, close.
 * STUB_<fact> is a value that the stub reports; numbers and texts have defaults.
 * STUB_calls names a file to which every call adds its name. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const char *setting(const char *name) {
  char key[128];
  snprintf(key, sizeof key, "STUB_%s", name);
  return getenv(key);
}

static long long number(const char *name, long long otherwise) {
  const char *text = setting(name);
  return text ? strtoll(text, NULL, 0) : otherwise;
}

static const char *words(const char *name, const char *otherwise) {
  const char *text = setting(name);
  return text ? text : otherwise;
}

static void note(const char *call) {
  const char *path = setting("calls");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", call);
  fclose(file);
}

static int behave(const char *call) {
  const char *what = setting(call);
  note(call);
  if (!what) return 0;
  if (!strcmp(what, "crash")) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (!strcmp(what, "abort")) abort();
  if (!strcmp(what, "exit")) exit(3);
  if (!strcmp(what, "hang")) {
    for (;;) pause();
  }
  if (!strcmp(what, "close")) { /* as libraries do that make themselves a daemon */
    for (int file = 0; file < 256; file++) close(file);
    return 0;
  }
  if (!strcmp(what, "noise")) {
    for (int line = 0; line < 5000; line++) printf("{\"ask\": \"cuda\", \"end\": \"done\"}\n");
    fflush(stdout);
    fprintf(stderr, "a driver complains\n");
    return 0;
  }
  return (int)strtol(what, NULL, 0);
}

#define BEHAVE(call)            \
  do {                          \
    int code = behave(#call);   \
    if (code) return code;      \
  } while (0)
