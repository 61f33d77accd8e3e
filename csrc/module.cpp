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

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
