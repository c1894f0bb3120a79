#pragma once
#include "relume/base/dtype.h"
#include "relume/base/shape.h"

namespace relume {

/// A dense row-major tensor somewhere in device memory. Owns nothing. `data` is null for an absent optional operand, and
/// while only shapes matter (planning).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data);
  }
  [[nodiscard]] std::int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

}  // namespace relume
