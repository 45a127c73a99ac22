// Runs a fuzz target over a corpus and over mutations of it, for compilers without libFuzzer:
//
//   fuzz_plan_reader [--mutations N] corpus/plan_reader [more files and folders]
//
// Mutations follow from N alone, so that a fault is found again; an input that ends the program
// lies in the file "crash" of the working folder, if that can be written.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<char>;

Input Read(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void Run(const Input& input) {
  // Exactly as long as the input, so that a sanitizer sees a read beyond its end.
  const Input copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(copy.data()), copy.size());
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Input>& corpus) : corpus_(corpus) {}

  Input Next() {
    Input input = corpus_[Below(corpus_.size())];
    for (std::size_t n = 1 + Below(4); n > 0; --n) Change(&input);
    return input;
  }

 private:
  std::size_t Below(std::size_t count) { return count == 0 ? 0 : random_() % count; }

  void Change(Input* input) {
    const std::size_t at = Below(input->size());
    const auto place = input->begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t left = input->size() - at;
    switch (Below(6)) {
      case 0:
        if (left > 0) *place = static_cast<char>(random_());
        break;
      case 1:
        if (left > 0) *place = static_cast<char>(*place ^ 1 << Below(8));
        break;
      case 2:
        input->erase(place, place + static_cast<std::ptrdiff_t>(Below(left + 1)));
        break;
      case 3: {
        static const std::vector<std::string> words{"-1",    "0",       "9223372036854775807",
                                                    "1e999", "[",       "{",
                                                    "\"",    "null",    "float0",
                                                    "true",  "\\u0000", ","};
        const std::string& word = words[Below(words.size())];
        input->insert(place, word.begin(), word.end());
        break;
      }
      case 4: {  // a piece of another input
        const Input& other = corpus_[Below(corpus_.size())];
        const std::size_t from = Below(other.size());
        const std::size_t count = Below(std::min<std::size_t>(other.size() - from, 200) + 1);
        const Input piece(other.begin() + static_cast<std::ptrdiff_t>(from),
                          other.begin() + static_cast<std::ptrdiff_t>(from + count));
        input->insert(place, piece.begin(), piece.end());
        break;
      }
      default: {  // a piece of this one again
        const Input piece(place, place + static_cast<std::ptrdiff_t>(
                                             Below(std::min<std::size_t>(left, 100) + 1)));
        input->insert(input->begin(), piece.begin(), piece.end());
      }
    }
  }

  const std::vector<Input>& corpus_;
  std::mt19937 random_{0};
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<Input> corpus;
  long mutations = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
      mutations = std::atol(argv[++i]);
    } else if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
        corpus.push_back(Read(entry.path()));
    } else {
      corpus.push_back(Read(argv[i]));
    }
  }
  if (corpus.empty()) {
    std::cerr << "usage: " << argv[0] << " [--mutations N] FILE_OR_FOLDER...\n";
    return 2;
  }
  std::sort(corpus.begin(), corpus.end());  // a folder's order is not the same everywhere
  for (const Input& input : corpus) Run(input);
  Mutator mutator(corpus);
  for (long n = 0; n < mutations; ++n) {
    const Input input = mutator.Next();
    std::ofstream("crash", std::ios::binary)
        .write(input.data(), static_cast<std::streamsize>(input.size()));
    Run(input);
  }
  std::filesystem::remove("crash");
  std::cerr << "ran " << corpus.size() << " inputs and " << mutations << " mutations of them\n";
  return 0;
}
