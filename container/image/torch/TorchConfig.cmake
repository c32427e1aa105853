# SPDX-License-Identifier: Apache-2.0
# Stands in for torch's own TorchConfig.cmake, which wants a CUDA toolkit wherever torch was
# built with CUDA. The binding touches no GPU, and one built so works with either torch.
set(TORCH_INSTALL_PREFIX "${SMDIST_TORCH_DIR}/torch")
set(TORCH_INCLUDE_DIRS
  "${TORCH_INSTALL_PREFIX}/include"
  "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
set(TORCH_LIBRARIES)
foreach(name torch torch_cpu c10)
  find_library(SMDIST_LIB_${name} ${name} PATHS "${TORCH_INSTALL_PREFIX}/lib" REQUIRED
    NO_DEFAULT_PATH)
  list(APPEND TORCH_LIBRARIES "${SMDIST_LIB_${name}}")
endforeach()
add_compile_definitions(USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
set(Torch_FOUND TRUE)
