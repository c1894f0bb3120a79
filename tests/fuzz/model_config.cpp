// config.json of a model, and a config of a run: an accepted one can be written and read again.
#include "fuzz.h"
#include "relume/config/config.h"
#include "relume/model/parameters.h"

using namespace relume;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  fuzz::may_refuse([&] {
    const ModelConfig m = parse_model_config(text, "config.json");
    if (m.num_hidden_layers <= 8) (void)make_parameter_layout(m);
  });
  fuzz::may_refuse([&] {
    const Config c = parse_config(text, "run.json");
    if (to_json(parse_config(to_json(c), "written")) != to_json(c)) std::abort();
  });
  return 0;
}
