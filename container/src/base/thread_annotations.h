// SPDX-License-Identifier: Apache-2.0
// Macros for Clang's thread safety analysis; empty for other compilers.
#pragma once

#if defined(__clang__)
#define SMDIST_ANNOTATION(x) __attribute__((x))
#else
#define SMDIST_ANNOTATION(x)
#endif

#define SMDIST_CAPABILITY(x) SMDIST_ANNOTATION(capability(x))
#define SMDIST_SCOPED_CAPABILITY SMDIST_ANNOTATION(scoped_lockable)
#define SMDIST_GUARDED_BY(x) SMDIST_ANNOTATION(guarded_by(x))
#define SMDIST_REQUIRES(...) SMDIST_ANNOTATION(requires_capability(__VA_ARGS__))
#define SMDIST_EXCLUDES(...) SMDIST_ANNOTATION(locks_excluded(__VA_ARGS__))
#define SMDIST_ACQUIRE(...) SMDIST_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SMDIST_TRY_ACQUIRE(...) SMDIST_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define SMDIST_RELEASE(...) SMDIST_ANNOTATION(release_capability(__VA_ARGS__))
// Turns the analysis off for one function; a comment beside it must state the reason.
#define SMDIST_UNCHECKED SMDIST_ANNOTATION(no_thread_safety_analysis)
