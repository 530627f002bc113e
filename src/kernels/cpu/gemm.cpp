#include "gemm.hpp"

#include <dnnl.h>

#include <algorithm>

#include "potato/core/allocations.hpp"
#include "potato/core/error.hpp"
#include "tile.hpp"

namespace potato::cpu {

namespace {

// A thread takes blocks of C of this many rows and columns. It packs the columns of B that it needs once, and A six
// rows at a time. A block never changes how an element is summed.
constexpr std::int64_t block_rows = 120;
constexpr std::int64_t block_columns = 64;
constexpr std::int64_t columns = tile_columns<double>;

struct Operand {
  const double* data;
  std::int64_t row_step;
  std::int64_t column_step;
  double at(std::int64_t row, std::int64_t column) const { return data[row * row_step + column * column_step]; }
};

// Panels [columns of a tile / tile][K][8], zeros beyond the last column.
void pack_b(const Operand& b, std::int64_t num_k, std::int64_t first, std::int64_t count, double* packed) {
  for (std::int64_t panel = 0; panel < count; panel += columns) {
    const std::int64_t filled = std::min(columns, count - panel);
    double* out = packed + panel * num_k;
    for (std::int64_t k = 0; k < num_k; ++k, out += columns) {
      for (std::int64_t j = 0; j < columns; ++j) out[j] = j < filled ? b.at(k, first + panel + j) : 0.0;
    }
  }
}

// [K][6], zeros beyond the last row.
void pack_a(const Operand& a, std::int64_t num_k, std::int64_t first, std::int64_t filled, double* packed) {
  for (std::int64_t i = 0; i < tile_rows; ++i) {
    for (std::int64_t k = 0; k < num_k; ++k) packed[k * tile_rows + i] = i < filled ? a.at(first + i, k) : 0.0;
  }
}

void multiply_block(const Operand& a, const Operand& b, std::int64_t row_begin, std::int64_t row_end,
                    std::int64_t column_begin, std::int64_t column_end, std::int64_t num_k, double alpha, double beta,
                    double* c, std::int64_t c_row) {
  double* packed_b = thread_scratch<double>(num_k * (block_columns + tile_rows));
  double* packed_a = packed_b + num_k * block_columns;
  pack_b(b, num_k, column_begin, column_end - column_begin, packed_b);
  for (std::int64_t row = row_begin; row < row_end; row += tile_rows) {
    const std::int64_t num_rows = std::min(tile_rows, row_end - row);
    pack_a(a, num_k, row, num_rows, packed_a);
    for (std::int64_t column = column_begin; column < column_end; column += columns) {
      alignas(32) double sums[tile_rows * columns];
      multiply_tile<false>(num_k, packed_a, 1, tile_rows, packed_b + (column - column_begin) * num_k, columns, sums,
                           columns);
      const std::int64_t num_columns = std::min(columns, column_end - column);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        double* out = c + (row + i) * c_row + column;
        for (std::int64_t j = 0; j < num_columns; ++j) {
          const double product = alpha * sums[i * columns + j];
          out[j] = beta == 0 ? product : __builtin_fma(beta, out[j], product);
        }
      }
    }
  }
}

}  // namespace

void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, const float* b, float beta, float* c) {
  if (k == 0) {
    for (std::int64_t i = 0; i < m * n; ++i) c[i] = beta == 0 ? 0.0F : beta * c[i];
    return;
  }
  const LibraryScope scope;
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a,
                                          transpose_a ? m : k, b, transpose_b ? k : n, beta, c, n);
  if (status != dnnl_success) {
    throw Error(cat("dnnl_sgemm returned status ", static_cast<int>(status), " for M = ", m, ", N = ", n, ", K = ", k));
  }
}

void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
          const double* a, const double* b, double beta, double* c) {
  const Operand left{a, transpose_a ? 1 : k, transpose_a ? m : 1};
  const Operand right{b, transpose_b ? 1 : n, transpose_b ? k : 1};
  const std::int64_t row_blocks = (m + block_rows - 1) / block_rows;
  const std::int64_t num_blocks = row_blocks * ((n + block_columns - 1) / block_columns);
#pragma omp parallel for schedule(static) if (num_blocks > 1 && m * n * k > 32768)
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t row = block % row_blocks * block_rows;
    const std::int64_t column = block / row_blocks * block_columns;
    multiply_block(left, right, row, std::min(m, row + block_rows), column, std::min(n, column + block_columns), k,
                   alpha, beta, c, n);
  }
}

}  // namespace potato::cpu
