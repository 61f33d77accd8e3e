// fastreader._C: importing it registers the CPU kernels; it also tells what the machine has.

#include <Python.h>

#include "isa.h"

namespace {

PyObject* best_isa(PyObject*, PyObject*) { return PyUnicode_FromString(fastreader::isa_name(fastreader::best_isa())); }

PyMethodDef methods[] = {
    {"best_isa", best_isa, METH_NOARGS, "The best instruction set this machine has kernels for."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastreader._C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

// Raised with every change of an op's signature: an extension left over from older sources is then told apart.
constexpr long kAbi = 7;

PyMODINIT_FUNC PyInit__C() {
  PyObject* created = PyModule_Create(&module);
  if (created != nullptr) PyModule_AddIntConstant(created, "ABI", kAbi);
  return created;
}
