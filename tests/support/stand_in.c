/* A stand-in for llama-server that does what the file "stand-in.txt" beside it says.
 *
 * Each line is "MODE STEP TEXT", and the steps of the mode that the arguments choose
 * (version, devices, compute or serve; model for a server of a router) are taken in order. Mode compute is a start with one of the
 * reference models; without a step for it, it listens and answers as computed (answers.h):
 *
 *     out TEXT, err TEXT    a line on that stream
 *     flood N               N lines on stderr
 *     dump                  the arguments, folder and environment on stdout
 *     spawn                 a child that ignores SIGTERM and outlives its parent
 *     hang                  wait for a signal
 *     need NAME             end with 0 here unless the environment has that variable
 *     without WORD          end with 42 if that is one of the arguments
 *     device NAME           refuse a --device unless the environment has that variable
 *     loading N             /health is answered with 503 so many times first
 *     speed P G             completions at P tokens of a prompt and G of an answer a second
 *     answers KIND          the reference models' answers: "nan", "repeated", "other" (those of
 *                           another prompt), or "untold" (without probabilities)
 *     answers-on-gpu KIND   the same, unless it runs with --device none
 *     answers-with NAME KIND  the same, if the environment has that variable as well
 *     right N               the first N of those answers are right all the same
 *     says FILE N OTHER     a canary is answered with FILE, after N of them with OTHER; there are
 *                           two slots, and clients use the first
 *     refuse N M            a completion is answered with status N, an embedding with M
 *     die TEXT              the first request for a result ends it as abort() does, after TEXT
 *     choke N TEXT          a prompt of more than N tokens does the same
 *     hog N                 the first request for a result takes N bytes of memory
 *     chat TEXT             a chat is answered with these words, one by one; a word "%" is the
 *                           number of messages, and after "..." the last one comes without end
 *     until FILE            prompts of several tokens are answered once FILE exists
 *     until-canary FILE     prompts that are texts, too
 *     key                   whoever sends no LLAMA_API_KEY gets 401, except at /health
 *     stuck                 only /health is answered; every other request waits for ever
 *     patient FILE          requests for a result wait for ever, and a signal ends it only when the
 *                           last of them has hung up, as with the real one; then FILE exists
 *     work FILE             a result makes that file, by its absolute path
 *     work-from NUMBER      only this result and later ones do
 *     open FILE             open a file and keep it open
 *     mapped FILE N         map N bytes of a model, by its absolute path
 *     child                 go on in a child, and end with it: a router, or a script
 *     route NAME            as a router that serves: start a server for that model
 *     pipe                  as such a server: end with 1 when the pipe to the router breaks
 *     map FILE              map a file of its folder, as the loader maps a library
 *     unmap FILE            undo the last "map"
 *     write FILE            write a byte over the first one of a file of its folder
 *     listen                log "listening on ..." and answer HTTP until a signal comes;
 *                           at a Unix socket if --host ends with ".sock", as the real one does
 *     serve                 the same, without a word in the log
 *     exit N, kill N        end with that exit code, or by that signal
 *
 * SIGTERM, SIGINT and SIGHUP are logged and end it with exit code 0, as the real one does.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#ifdef NEEDS
int NEEDS(void);
#endif

static char waits[4096];
static int waiting = -1;

static void leave(int number)
{
    char rest;
    while (waiting >= 0 && read(waiting, &rest, 1) > 0)
        ;
    char line[] = "stand-in: signal 00\n";
    line[17] = (char)('0' + number / 10);
    line[18] = (char)('0' + number % 10);
    if (write(2, line, sizeof line - 1) < 0)
        _exit(9);
    _exit(0);
}

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            otherwise = argv[i + 1];
    return otherwise;
}

static int has(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return 1;
    return 0;
}

/* A start with one of the models that the program makes for its gate. */
static int has_reference(int argc, char **argv)
{
    const char *name = strrchr(option(argc, argv, "-m", ""), '/');
    return name && (!strcmp(name, "/mixture.gguf") || !strcmp(name, "/recurrent.gguf"));
}

static void dump(int argc, char **argv)
{
    char folder[4096];
    for (int i = 0; i < argc; i++)
        printf("arg %s\n", argv[i]);
    printf("cwd %s\n", getcwd(folder, sizeof folder));
    for (char **each = environ; *each; each++)
        printf("env %s\n", *each);
    fflush(stdout);
}

static void spawn(void)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    printf("spawned %d\n", (int)child);
    fflush(stdout);
}

static long loading, refused_completions, refused_embeddings;
static int dies, stuck, wants_key;
static size_t hog;
static long most_tokens;
static char last_words[4096];
static char work[4096];
static int work_from = 1, worked;
static char awaited[4096];
static int texts_wait;

struct told {
    const char *prompt, *body, *nan, *repeated;
};

static const struct told known_answers[] = {
#include "answers.h"
};

static const char *kind = "";
static int right_answers;

/* The answer to a prompt of a reference model; NULL for another prompt. */
static const char *computed(const char *request)
{
    const int count = sizeof known_answers / sizeof *known_answers;
    const char *prompt = strstr(request, "\"prompt\": [");
    for (int i = 0; prompt && i < count; i++) {
        const struct told *each = &known_answers[i];
        if (strncmp(prompt, each->prompt, strlen(each->prompt)))
            continue;
        if (right_answers-- > 0)
            return each->body;
        if (!strcmp(kind, "untold"))
            return "{\"content\":\"aaa\"}";
        if (!strcmp(kind, "nan"))
            return each->nan;
        if (!strcmp(kind, "repeated"))
            return each->repeated;
        return !strcmp(kind, "other") ? known_answers[(i + 1) % count].body : each->body;
    }
    return NULL;
}

static char right_file[4096], wrong_file[4096];
static int canaries, right_canaries, others;

static void content_of(const char *path, char *body, size_t room)
{
    int file = open(path, O_RDONLY);
    ssize_t size = read(file, body, room - 1);
    body[size < 0 ? 0 : size] = 0;
    close(file);
}

/* The slots, and the answer to a canary; 0 for another request. */
static int said(const char *request, char *body, size_t room)
{
    if (!*right_file)
        return 0;
    if (!strncmp(request, "GET /slots", 10)) {
        snprintf(body, room,
                 "[{\"id\":0,\"is_processing\":false,\"id_task\":%d,\"n_prompt_tokens\":2000},"
                 "{\"id\":1,\"is_processing\":false}]", others);
        return 1;
    }
    if (strstr(request, "\"n_probs\"")) {
        content_of(canaries++ < right_canaries ? right_file : wrong_file, body, room);
        return 1;
    }
    others += !strncmp(request, "POST /completion", 16);
    return 0;
}

static double prompt_speed, generation_speed;

/* The whole request: one that is left unread would be answered with a reset. */
static void receive(int client, char *request, size_t room)
{
    size_t size = 0, wanted = room;
    while (size < wanted) {
        ssize_t more = read(client, request + size, room - size);
        if (more <= 0)
            break;
        request[size += (size_t)more] = 0;
        const char *end = strstr(request, "\r\n\r\n");
        const char *length = strstr(request, "Content-Length: ");
        if (end)
            wanted = (size_t)(end - request) + 4 + (length ? strtoul(length + 16, NULL, 10) : 0);
    }
}

/* The tokens of a request's prompt; 0 for a text. */
static long tokens(const char *request)
{
    const char *prompt = strstr(request, "\"prompt\": [");
    long found = prompt != NULL;
    for (; prompt && *prompt != ']'; prompt++)
        found += *prompt == ',';
    return found;
}

/* How long a completion took, at the speeds that were told. */
static void completed(const char *request, char *body, size_t room)
{
    const char *wanted = strstr(request, "\"n_predict\": ");
    int read = (int)tokens(request);
    if (!read || !wanted || prompt_speed == 0) {
        snprintf(body, room, "{\"content\":\"aaa\",\"timings\":{}}");
        return;
    }
    int generated = atoi(wanted + 13);
    snprintf(body, room,
             "{\"timings\":{\"prompt_n\":%d,\"prompt_ms\":%f,\"predicted_n\":%d,\"predicted_ms\":%f}}",
             read, read / prompt_speed * 1000, generated, generated / generation_speed * 1000);
}

static char chat[4096];

/* An answer as events, each with one word; it ends when the client goes. */
static void converse(int client, const char *request)
{
    char words[sizeof chat], number[16], *rest = strcpy(words, chat);
    const char *word = "", *next;
    int messages = 0;
    for (const char *at = request; (at = strstr(at, "\"role\"")); at++)
        messages++;
    snprintf(number, sizeof number, "%d", messages);
    int gone = dprintf(client, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Connection: close\r\n\r\n") < 0;
    while ((next = strtok_r(rest, " ", &rest)) && !gone) {
        int endless = !strcmp(next, "...");
        word = endless ? word : !strcmp(next, "%") ? number : next;
        do
            gone = dprintf(client, "data: {\"choices\":[{\"delta\":{\"content\":\"%s \"}}]}\n\n",
                           word) < 0;
        while (endless && !gone);
    }
    dprintf(client, "data: [DONE]\n\n");
    close(client);
}

static char routed[8][256];
static int routes;

/* The models of a router, as far as clients read them. */
static void list_models(char *body)
{
    strcpy(body, "{\"data\":[");
    for (int i = 0; i < routes; i++)
        sprintf(body + strlen(body), "%s{\"id\":\"%s\"}", i ? "," : "", routed[i]);
    strcat(body, "]}");
}

static void answer(int client)
{
    static char request[65536], body[8192];
    const char *content = body;
    receive(client, request, sizeof request - 1);
    const char *status = loading > 0 ? "503 Service Unavailable" : "200 OK";
    char refused[64];
    long code = !strncmp(request, "POST /completion", 16)  ? refused_completions
                : !strncmp(request, "POST /embedding", 15) ? refused_embeddings
                                                           : 0;
    if (wants_key && strncmp(request, "GET /health", 11)) {
        char wanted[256];
        snprintf(wanted, sizeof wanted, "Authorization: Bearer %s\r\n", getenv("LLAMA_API_KEY"));
        code = strstr(request, wanted) ? code : 401;
    }
    loading--;
    if (stuck && strncmp(request, "GET /health", 11))
        return;
    if (*waits && !strncmp(request, "POST /", 6)) {
        waiting = client;
        close(open(waits, O_CREAT, 0600));
        return;
    }
    if (!strncmp(request, "POST /", 6) && (dies || (most_tokens && tokens(request) > most_tokens))) {
        if (*last_words)
            fprintf(stderr, "%s\n", last_words);
        abort();
    }
    if (*chat && !strncmp(request, "POST /v1/chat/completions", 25)) {
        converse(client, request);
        return;
    }
    if (hog && !strncmp(request, "POST /", 6))
        memset(malloc(hog), 1, hog);
    while (*awaited && (tokens(request) > 1 || (texts_wait && strstr(request, "\"prompt\": \"")))
           && access(awaited, F_OK))
        usleep(1000);
    if (code)
        snprintf(refused, sizeof refused, "%ld Refused", code), status = refused;
    else if (*work && !strncmp(request, "POST /", 6) && ++worked >= work_from)
        close(open(work, O_CREAT | O_WRONLY, 0600));
    if (!strncmp(request, "GET /health", 11))
        strcpy(body, "{\"status\":\"ok\"}");
    else if (!strncmp(request, "GET /props", 10))
        strcpy(body, "{\"default_generation_settings\":{\"n_ctx\":2048}}");
    else if (!strncmp(request, "POST /tokenize", 14)) {
        strcpy(body, "{\"tokens\":[0");
        for (int i = 1; i < 600; i++)
            sprintf(body + strlen(body), ",%d", i);
        strcat(body, "]}");
    } else if (routes && !strncmp(request, "GET /v1/models", 14)) {
        list_models(body);
    } else if (said(request, body, sizeof body)) {
        content = body;
    } else if (!(content = computed(request))) {
        completed(request, body, sizeof body);
        content = body;
    }
    dprintf(client,
            "HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
            status, strlen(content), content);
    close(client);
}

/* At a Unix socket, as --host with a path ending in .sock. */
static int listen_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 8)) {
        fprintf(stderr, "E srv start: couldn't bind HTTP server socket, hostname: %s, port: 8080\n", path);
        exit(1);
    }
    return server;
}

/* As server_models::load in upstream's tools/server/server-models.cpp starts them (b11434): they
 * get the port that the router was told, not the one that it took. */
static void start_models(const char *port)
{
    char own[4096] = {0};
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0)
        exit(98);
    setenv("LLAMA_SERVER_ROUTER_PORT", port, 1);
    for (int i = 0; i < routes; i++) {
        int ends[2];
        if (pipe(ends) || fcntl(ends[1], F_SETFD, FD_CLOEXEC))
            exit(92);
        if (vfork() == 0) { /* once this server listens, they have their own arguments */
            dup2(ends[0], 0);
            execl(own, own, "--host", "127.0.0.1", "--port", "0", "--alias", routed[i], NULL);
            _exit(91);
        }
        close(ends[0]);
    }
}

/* As server_child::setup there. */
static void wait_for_the_end_of_the_pipe(void)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    exit(1);
}

static void serve(int argc, char **argv, int silent)
{
    const char *host = option(argc, argv, "--host", "");
    if (strlen(host) > 5 && !strcmp(host + strlen(host) - 5, ".sock")) {
        int server = listen_unix(host);
        start_models(option(argc, argv, "--port", "8080"));
        if (!silent)
            fprintf(stderr, "I srv llama_server: listening on unix://%s\n", host);
        for (;;)
            answer(accept(server, NULL, NULL));
    }
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((unsigned short)atoi(option(argc, argv, "--port", "0")));
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 8)) {
        fprintf(stderr, "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: %s\n",
                option(argc, argv, "--port", "0"));
        exit(1);
    }
    getsockname(server, (struct sockaddr *)&address, &size);
    start_models(option(argc, argv, "--port", "0"));
    if (!silent) {
        fprintf(stderr, "I srv llama_server: model loaded\n");
        fprintf(stderr, "I srv llama_server: listening on http://127.0.0.1:%d\n", ntohs(address.sin_port));
    }
    for (;;)
        answer(accept(server, NULL, NULL));
}

/* The folder of this program, with a slash: it runs in another one. */
static char folder[4096];

static const char *beside(const char *file)
{
    static char path[8192];
    snprintf(path, sizeof path, "%s%s", *file == '/' ? "" : folder, file);
    return path;
}

static void *mapped;

static void map(const char *file)
{
    int opened = open(beside(file), O_RDONLY);
    mapped = opened < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_PRIVATE, opened, 0);
    if (mapped == MAP_FAILED)
        exit(97);
    close(opened);
}

static void map_model(const char *text)
{
    char file[4096];
    size_t size;
    int opened = sscanf(text, "%4095s %zu", file, &size) == 2 ? open(file, O_RDONLY) : -1;
    if (opened < 0 || mmap(NULL, size, PROT_READ, MAP_SHARED, opened, 0) == MAP_FAILED)
        exit(95);
}

static void go_on_in_a_child(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        return;
    if (waitpid(child, &status, 0) < 0)
        exit(94);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 93);
}

static void spoil(const char *file)
{
    chmod(beside(file), 0644); /* the files of a build are read-only */
    int opened = open(beside(file), O_WRONLY);
    if (opened < 0 || write(opened, "!", 1) != 1)
        exit(96);
    close(opened);
}

static void step(const char *name, const char *text, int argc, char **argv)
{
    if (!strcmp(name, "out"))
        printf("%s\n", text), fflush(stdout);
    else if (!strcmp(name, "err"))
        fprintf(stderr, "%s\n", text);
    else if (!strcmp(name, "flood"))
        for (long i = 0; i < atol(text); i++)
            fprintf(stderr, "flood %ld\n", i);
    else if (!strcmp(name, "dump"))
        dump(argc, argv);
    else if (!strcmp(name, "spawn"))
        spawn();
    else if (!strcmp(name, "hang"))
        for (;;)
            pause();
    else if (!strcmp(name, "listen"))
        serve(argc, argv, 0);
    else if (!strcmp(name, "serve"))
        serve(argc, argv, 1);
    else if (!strcmp(name, "need")) {
        if (!getenv(text))
            exit(0);
    } else if (!strcmp(name, "without")) {
        if (has(argc, argv, text))
            exit(42);
    } else if (!strcmp(name, "device")) {
        if (!getenv(text) && has(argc, argv, "--device")) {
            fprintf(stderr, "error while handling argument \"--device\": invalid device: %s\n",
                    option(argc, argv, "--device", ""));
            exit(1);
        }
    } else if (!strcmp(name, "loading"))
        loading = atol(text);
    else if (!strcmp(name, "speed"))
        sscanf(text, "%lf %lf", &prompt_speed, &generation_speed);
    else if (!strcmp(name, "answers"))
        kind = strdup(text);
    else if (!strcmp(name, "answers-on-gpu")) {
        if (strcmp(option(argc, argv, "--device", "none"), "none"))
            kind = strdup(text);
    } else if (!strcmp(name, "answers-with")) {
        char variable[64], wrong[64];
        if (sscanf(text, "%63s %63s", variable, wrong) != 2)
            exit(93);
        if (getenv(variable) && strcmp(option(argc, argv, "--device", "none"), "none"))
            kind = strdup(wrong);
    } else if (!strcmp(name, "right")) {
        right_answers = atoi(text);
    } else if (!strcmp(name, "says")) {
        if (sscanf(text, "%4095s %d %4095s", right_file, &right_canaries, wrong_file) != 3)
            exit(90);
    } else if (!strcmp(name, "refuse"))
        sscanf(text, "%ld %ld", &refused_completions, &refused_embeddings);
    else if (!strcmp(name, "die"))
        dies = 1, snprintf(last_words, sizeof last_words, "%s", text);
    else if (!strcmp(name, "choke")) {
        if (sscanf(text, "%ld %4095[^\n]", &most_tokens, last_words) < 1)
            exit(91);
    } else if (!strcmp(name, "chat")) {
        signal(SIGPIPE, SIG_IGN), snprintf(chat, sizeof chat, "%s", text);
    } else if (!strcmp(name, "until") || !strcmp(name, "until-canary")) {
        texts_wait = !strcmp(name, "until-canary");
        snprintf(awaited, sizeof awaited, "%s", text);
    }
    else if (!strcmp(name, "key"))
        wants_key = 1;
    else if (!strcmp(name, "stuck"))
        stuck = 1;
    else if (!strcmp(name, "patient"))
        snprintf(waits, sizeof waits, "%s", text);
    else if (!strcmp(name, "hog"))
        hog = strtoul(text, NULL, 10);
    else if (!strcmp(name, "work-from"))
      work_from = atoi(text);
    else if (!strcmp(name, "work"))
        snprintf(work, sizeof work, "%s", text);
    else if (!strcmp(name, "open")) {
        if (open(text, O_RDWR) < 0)
            exit(92);
    } else if (!strcmp(name, "mapped"))
        map_model(text);
    else if (!strcmp(name, "route"))
        snprintf(routed[routes++ % 8], sizeof routed[0], "%s", text);
    else if (!strcmp(name, "pipe"))
        wait_for_the_end_of_the_pipe();
    else if (!strcmp(name, "child"))
        go_on_in_a_child();
    else if (!strcmp(name, "unmap"))
        munmap(mapped, 1);
    else if (!strcmp(name, "map"))
        map(text);
    else if (!strcmp(name, "write"))
        spoil(text);
    else if (!strcmp(name, "exit"))
        exit(atoi(text));
    else if (!strcmp(name, "kill"))
        signal(atoi(text), SIG_DFL), kill(getpid(), atoi(text));
    else
        exit(99);
}

int main(int argc, char **argv)
{
    char path[4096], line[4096];
    const char *mode = getenv("LLAMA_SERVER_ROUTER_PORT")  ? "model"
                       : has(argc, argv, "--version")      ? "version"
                       : has(argc, argv, "--list-devices") ? "devices"
                       : has(argc, argv, "--help")         ? "help"
                       : has_reference(argc, argv)         ? "compute"
                                                           : "serve";
    int steps = 0;
    const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signal(signals[i], leave) == SIG_IGN)
            signal(signals[i], SIG_IGN);
    setvbuf(stderr, NULL, _IOLBF, 0);
#ifdef NEEDS
    if (argc == 12345)
        NEEDS();
#endif
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 32);
    if (size < 0)
        return 98;
    path[size] = 0;
    strrchr(path, '/')[1] = 0;
    strcpy(folder, path);
    strcat(path, "stand-in.txt");
    FILE *script = fopen(path, "r");
    while (script && fgets(line, sizeof line, script)) {
        char *name = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (!name)
            continue;
        *name++ = 0;
        char *text = strchr(name, ' ');
        if (text)
            *text++ = 0;
        if (!strcmp(line, mode))
            steps++, step(name, text ? text : "", argc, argv);
    }
    if (!strcmp(mode, "compute") && !steps)
        serve(argc, argv, 0);
    return 0;
}
