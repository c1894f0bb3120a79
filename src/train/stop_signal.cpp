#include "relume/train/stop_signal.h"

#include <csignal>
#include <initializer_list>

namespace relume {

namespace {

volatile std::sig_atomic_t g_received = 0;  // a signal handler may touch nothing else

void handle(int signal) {
  if (g_received) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  g_received = signal;
}

}  // namespace

StopSignal::StopSignal() {
  g_received = 0;
  for (int s : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = handle;
    sigaction(s, &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (int s : {SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
}

int StopSignal::received() { return g_received; }

}  // namespace relume
